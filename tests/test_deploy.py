"""The files in `deploy/`, as far as they can be checked without a builder or a cluster."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from typer.main import get_command

from secureafl.cli.main import app
from secureafl.engines.flower.app_settings import FlowerSettings
from secureafl.server.report.prometheus import DISK_METRICS, METRICS
from secureafl.server.standby.metrics import STANDBY_METRICS

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
CHART = DEPLOY / "helm" / "secureafl"


def check_standby(words: list[str]) -> list[str]:
    """What follows `--` in a command that starts a standby, once the command line has taken all of it."""
    at = next(place for place, word in enumerate(words) if word.endswith("secureafl"))
    assert words[at + 1] == "standby"
    command = get_command(app).commands["standby"]  # type: ignore[attr-defined]
    context = command.make_context("standby", words[at + 2 :])
    found: list[str] = context.params["command"]
    return found


def check_run_config(text: str) -> dict[str, str]:
    """Flower's settings, each of which exists."""
    found = dict(pair.split("=", 1) for pair in text.split())
    for name in found:
        room, _, key = name.partition(".")
        assert room == "secureafl"
        assert key.replace("-", "_") in FlowerSettings.model_fields
    return found


def test_images_are_of_both_engines_and_run_without_root() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    named = {stage.split()[2]: stage for stage in stages}
    for engine in ("flower", "nvflare"):
        assert f"[{engine},ops,postgres,s3]" in named[engine]
        assert "USER 10001" in named[engine]
    kept = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (DEPLOY.parent / source).exists()
            assert f"!{source}" in kept, "the build context leaves it out"


def test_compose_names_what_exists() -> None:
    services: dict[str, dict[str, Any]] = COMPOSE["services"]
    assert set(services) == {"postgres", "superlink", "server", "standby", "prometheus", "grafana"}
    for service in services.values():
        assert set(service.get("depends_on", [])) <= set(services)
        for mount in service.get("volumes", []):
            source = re.sub(r"^\$\{\w+:-(.*?)\}", r"\1", mount).split(":")[0]
            if source.startswith(".") and source != "./app":
                assert (DEPLOY / "compose" / source).exists(), mount
            elif not source.startswith("."):
                assert source in COMPOSE["volumes"]
        if target := service.get("build", {}).get("target"):
            assert f" AS {target}\n" in DOCKERFILE
    asked = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose" / "compose.yaml").read_text()))
    assert asked == set(re.findall(r"^(\w+)=", (DEPLOY / "compose" / ".env.example").read_text(), re.MULTILINE))
    published = {port for service in services.values() for port in service.get("ports", [])}
    assert {port for port in published if not port.startswith("127.0.0.1:")} == {"9092:9092"}


def test_compose_starts_a_standby_whose_server_resumes_the_same_run() -> None:
    words = shlex.split(COMPOSE["services"]["standby"]["command"][2].replace("$$RUN", "postgresql://u@h/d/r"))
    *command, config = check_standby(words)
    assert command == ["flwr", "run", "/app", "deploy", "--run-config"]
    resumed = check_run_config(config)
    begun = check_run_config(
        shlex.split(COMPOSE["services"]["server"]["command"][2].replace("$$RUN", "postgresql://u@h/d/r"))[-1]
    )
    assert resumed == {**begun, "secureafl.resume": "true"}


def test_prometheus_scrapes_the_ports_that_are_set() -> None:
    config = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    targets = [scrape["static_configs"][0]["targets"][0] for scrape in config["scrape_configs"]]
    assert targets == ["superlink:9464", "standby:9465"]
    text = (DEPLOY / "compose" / "compose.yaml").read_text()
    assert "metrics-port=9464" in text
    assert "--metrics-port 9465" in text


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    known = {metric.name for metric in METRICS} | set(DISK_METRICS) | set(STANDBY_METRICS)
    known |= {f"{metric.name}_bucket" for metric in METRICS if metric.kind == "histogram"}
    board = json.loads((DEPLOY / "grafana" / "secureafl.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) >= 10
    for query in queries:
        promql_parser.parse(query)
        assert set(re.findall(r"\bsecureafl_\w+", query)) <= known, query
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def filled_in(template: str) -> Iterator[dict[str, Any]]:
    """The objects of a template that uses values, the release's name and `toJson`, and nothing else."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def fill(found: re.Match[str]) -> str:
        name, _, function = found[1].strip().partition(" | ")
        if name == ".Release.Name":
            return "federation"
        room, *path = name.lstrip(".").split(".")
        assert room == "Values", found[0]
        value = values
        for key in path:
            value = value[key]
        assert function in ("", "toJson"), found[0]
        return json.dumps(value) if function else str(value)

    text = re.sub(r"\{\{(.*?)\}\}", fill, (CHART / "templates" / template).read_text())
    yield from yaml.safe_load_all(text)


def test_the_chart_fills_in_to_objects_that_fit_together() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["apiVersion"] == "v2"
    [config] = filled_in("config.yaml")
    superlink, service = filled_in("superlink.yaml")
    [standby] = filled_in("standby.yaml")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert f'address = "{name}:{port}"' in config["data"]["config.toml"]
    for deployment in (superlink, standby):
        pod = deployment["spec"]["template"]
        labels = pod["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        mounts = {
            mount["name"] for container in pod["spec"]["containers"] for mount in container.get("volumeMounts", [])
        }
        assert mounts <= {volume["name"] for volume in pod["spec"].get("volumes", [])}
    labels = superlink["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    [container] = standby["spec"]["template"]["spec"]["containers"]
    *command, run_config = check_standby(container["args"])
    assert command == ["flwr", "run", "/app", "deploy", "--run-config"]
    assert check_run_config(run_config)["secureafl.resume"] == "true"
    assert config["metadata"]["name"] in str(standby["spec"]["template"]["spec"]["volumes"])


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_units_are_what_systemd_takes(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    [line] = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.MULTILINE)
    words = shlex.split(line.replace("\\\n", " ").replace("${RUN}", "postgresql://u@h/d/r"))
    if "standby" in unit.name:
        assert check_standby(words)[-1] == "secureafl.resume=true"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copied = tmp_path / unit.name
    copied.write_text(text.replace(words[0], "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copied)], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if unit.name.partition("@")[0] in line]
    assert (done.returncode, said) == (0, []), done.stderr
