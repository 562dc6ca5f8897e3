"""What stands around the code: workflows, the lock file, links, and one way to say install."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import secureafl

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GITHUB = ROOT / ".github"
LOCKED = dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", (ROOT / ".ci" / "requirements.lock").read_text(), re.M))


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is no checkout")
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def steps(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", sorted((GITHUB / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_calls_what_there_is_and_may_do_no_more_than_it_needs(workflow: Path) -> None:
    written = yaml.safe_load(workflow.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for command in steps(workflow):
        assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets
        assert all((ROOT / script).is_file() for script in re.findall(r"(?<!\S)\.ci/[\w-]+", command))
    assert written["permissions"] == {"contents": "read"}
    for name, job in written["jobs"].items():
        assert job["timeout-minutes"] <= 40
        assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})


def test_a_release_is_built_by_one_job_and_published_by_another_without_a_token() -> None:
    text = (GITHUB / "workflows" / "release.yml").read_text()
    release = yaml.safe_load(text)
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    assert release["jobs"]["publish"]["needs"] == "build"
    assert "secrets." not in text


def test_templates_for_issues_are_forms() -> None:
    for form in ("bug.yml", "idea.yml"):
        written = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / form).read_text())
        assert {"name", "description", "body"} <= written.keys()


def test_every_link_to_the_repository_is_to_the_same_one() -> None:
    home = PROJECT["urls"]["Repository"]
    assert all(url.startswith(home) for url in PROJECT["urls"].values())
    owner, name = home.removeprefix("https://github.com/").split("/")
    for path in tracked("*.md", "*.yml", "*.toml", "*.cff"):
        for found in re.findall(rf"github\.com/([\w-]+/{name})\b", path.read_text(), re.IGNORECASE):
            assert found == f"{owner}/{name}", path
    assert f"{home}/security/advisories/new" in (ROOT / "SECURITY.md").read_text()
    assert f"{home}/security/advisories/new" in (GITHUB / "ISSUE_TEMPLATE" / "config.yml").read_text()


def test_the_lock_file_has_everything_but_pytorch_and_a_hash_for_each() -> None:
    named = [*PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        named += extra
    wanted = {re.split(r"[<>=\[ ]", one)[0].lower().replace("_", "-") for one in named} - {"secureafl", "torch"}
    assert wanted - LOCKED.keys() == set()
    assert not {name for name in LOCKED if name.startswith(("torch", "nvidia-cu", "triton"))}
    entries = re.split(r"^(?=[a-z0-9])", (ROOT / ".ci" / "requirements.lock").read_text(), flags=re.M)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)


def test_installing_is_said_in_one_way() -> None:
    extras = PROJECT["optional-dependencies"].keys()
    for path in tracked("*.md", "*.in", "src/*.py"):
        if path.name == "CONTRIBUTING.md" or "decisions" in path.parts:
            continue
        text = path.read_text()
        assert not re.search(r"""pip install .*["']\.[/\[]""", text), f"{path}: write pip install secureafl[...]"
        from_a_copy = re.findall(r"pip install \.", text)
        assert len(from_a_copy) <= (path.name == "README.md"), f"{path}: write pip install secureafl"
        for words in re.findall(r'pip install "secureafl\[([\w,]+)\]"', text):
            assert set(words.split(",")) <= extras, path


def test_the_version_is_the_same_everywhere() -> None:
    (newest, date), *_ = re.findall(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "secureafl" / "Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "secureafl" / "values.yaml").read_text())
    found = {newest, cited["version"], chart["version"], chart["appVersion"], values["image"]["tag"]}
    assert found == {secureafl.__version__}
    assert str(cited["date-released"]) == date


def test_the_readme_says_what_each_extra_is_for() -> None:
    table = re.search(r"^\| extra \|.*?\n\n", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert table is not None
    named = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table[0].splitlines() if "|" in line))
    assert set(named) == PROJECT["optional-dependencies"].keys() - {"docs", "dev"}


HOSTS = ("pypi" + ".org", "pytorch.org/whl", "files." + "pythonhosted", "test.pypi")


def test_no_package_registry_is_named() -> None:
    for path in tracked():
        if path.suffix in {".png", ".db", ".parquet", ".safetensors", ".woff2"} or path == Path(__file__):
            continue
        text = path.read_bytes().decode(errors="ignore")
        assert not [host for host in HOSTS if host in text], path
