#!/usr/bin/env python3
"""Look into what `python -m build` made: usage `.ci/check_dist.py dist`. Run it in a Git checkout of the same state."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("results/lab/cells/", ".github/")  # large, or of no use without the repository
KEPT_ANYWAY = ("PKG-INFO",)
RELATIVE = re.compile(r'(?:\]\(|src="|srcset=")((?!https?://|#)[^)"]+)')
"""Links of the README that only the repository can follow."""


def tracked() -> set[str]:
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def check_wheel(wheel: Path, version: str) -> list[str]:
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    package = {name.removeprefix("src/") for name in tracked() if name.startswith("src/secureafl/")}
    assert "secureafl/py.typed" in package
    info = f"secureafl-{version}.dist-info"
    metadata = archive.read(f"{info}/METADATA").decode()
    faults = [f"the wheel lacks {name}" for name in sorted(package - names)]
    faults += [f"the wheel holds {name}" for name in sorted(names - package) if not name.startswith(info)]
    if f"{info}/licenses/LICENSE" not in names:
        faults.append("the wheel lacks the licence")
    if "secureafl = secureafl.cli:app" not in archive.read(f"{info}/entry_points.txt").decode():
        faults.append("the wheel does not install the command")
    for extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]:
        if f"Provides-Extra: {extra}\n" not in metadata:
            faults.append(f"the wheel knows no extra {extra!r}")
    shown = metadata.partition("\n\n")[2]
    faults += [f"the package index shows no {link}, which is of the repository" for link in RELATIVE.findall(shown)]
    return faults


def check_sdist(sdist: Path, version: str) -> list[str]:
    prefix = f"secureafl-{version}/"
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(prefix) for name in archive.getnames()}
    wanted = {name for name in tracked() if not name.startswith(LEFT_OUT) and not name.endswith(".parquet")}
    faults = [f"the sdist lacks {name}" for name in sorted(wanted - names)]
    return faults + [f"the sdist holds {name}" for name in sorted(names - tracked() - set(KEPT_ANYWAY))]


def main() -> int:
    folder = Path(sys.argv[1])
    (version,) = re.findall(r'__version__ = "(.+)"', (ROOT / "src/secureafl/__init__.py").read_text())
    wheel, sdist = folder / f"secureafl-{version}-py3-none-any.whl", folder / f"secureafl-{version}.tar.gz"
    faults = check_wheel(wheel, version) + check_sdist(sdist, version)
    if version not in (ROOT / "CITATION.cff").read_text():
        faults.append(f"CITATION.cff does not name version {version}")
    if not re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        faults.append(f"CHANGELOG.md has no section for version {version}")
    print("\n".join(faults) or f"{wheel.name} and {sdist.name} hold what they should")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
