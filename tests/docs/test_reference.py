"""The generated pages hold everything the code has, and the hand-written list of verdicts too."""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

import secureafl
from secureafl import cli
from secureafl.lab.attacks import ATTACKS
from secureafl.server.record.entries import Event
from secureafl.settings import Settings
from secureafl.types import Reason

DOCS = Path(__file__).parents[2] / "docs"
FEWEST_WORDS = 3


def extension(name: str) -> ModuleType:
    """One of the modules that the documentation is built with."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_extensions" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("docstrings", "notebooks"):
        monkeypatch.setitem(sys.modules, name, extension(name))
    return extension("generated")


def test_every_setting_is_on_the_page_with_its_meaning(generated: ModuleType) -> None:
    text = generated.settings()
    classes: list[type[Settings]] = generated.settings_classes()
    assert {"SecureAFLSettings", "FlowerSettings", "NVFlareSettings", "CellSettings"} <= {c.__name__ for c in classes}
    for found in classes:
        assert f"### {found.__name__}\n" in text
        for name, field in found.model_fields.items():
            assert f"| `{name}` |" in text
            assert len((field.description or "").split()) >= FEWEST_WORDS, f"{found.__name__}.{name} says nothing"


def test_every_command_is_on_the_page_with_its_options(generated: ModuleType) -> None:
    text = generated.commands()
    for path in ("secureafl audit", "secureafl lab sweep"):
        assert f"# `{path}`\n" in text
    root = typer.main.get_command(cli.app)
    for command in root.commands.values():  # type: ignore[attr-defined]
        for parameter in command.params:
            shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.human_readable_name
            row = next(line for line in text.splitlines() if f"`{shown}`" in line and line.startswith("|"))
            assert row.split("|")[-2].strip(), f"{command.name} {shown} says nothing"


def test_every_attack_is_on_the_page_with_its_source_and_settings(generated: ModuleType) -> None:
    text = generated.attacks()
    assert [line[4:-1] for line in text.splitlines() if line.startswith("## ")] == list(ATTACKS)
    section = text[text.index("## `flood`") : text.index("## `whitewash`")]
    assert "Asynchronous Byzantine Machine Learning" in section
    assert "```text\nm = -scale L g_0 / |g_0|" in section
    assert "Settings: [FloodSettings](settings.md#floodsettings)." in section


def pages_of_the_interface(generated: ModuleType) -> dict[str, Path]:
    """The page of each public module."""
    found = {}
    for path in sorted((DOCS / "reference" / "api").glob("*.md")):
        for part in generated.parts_of(path.read_text()):
            found[part.removeprefix("interface-")] = path
    return found


def test_every_public_name_is_on_one_page_once(generated: ModuleType) -> None:
    assert sorted(pages_of_the_interface(generated)) == sorted(generated.PUBLIC)
    text = "".join(generated.interface(module) for module in generated.PUBLIC)
    assert text.count(".. autoclass:: secureafl.Machine\n") == 1
    assert ".. autofunction:: secureafl.engines.flower.server_app\n" in text
    assert "secureafl.server.Machine\n" not in text
    for name in ("run", "sweep", "compare"):
        assert text.count(f".. autofunction:: secureafl.lab.{name}\n") == 1


@pytest.mark.parametrize("page", sorted((DOCS / "reference" / "api").glob("*.md")), ids=lambda page: page.stem)
def test_the_example_of_a_page_runs(
    page: Path, tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECUREAFL_DATA", str(tiny_source))
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == (0 if page.stem == "index" else 1)
    for block in blocks:
        exec(compile(block, str(page), "exec"), {"__name__": "example"})


INTERNAL = {
    "secureafl.cli",
    "secureafl.defenses.secureafl.combine",
    "secureafl.defenses.secureafl.estimate",
    "secureafl.history",
    "secureafl.kernels",
}
"""Packages whose exports are for this package alone."""


def test_what_a_package_exports_is_on_the_page_unless_it_is_internal(generated: ModuleType) -> None:
    root = Path(*secureafl.__path__)
    rooms = [".".join(("secureafl", *path.parent.relative_to(root).parts)) for path in root.rglob("__init__.py")]
    exporting = {room for room in rooms if hasattr(importlib.import_module(room), "__all__")}
    assert exporting - INTERNAL == {room for room in generated.PUBLIC if room in rooms}
    for room, page in pages_of_the_interface(generated).items():
        assert page.read_text().startswith(f"# `{room}`\n")


def test_a_notebook_becomes_a_page_with_its_outputs(generated: ModuleType) -> None:
    for name in generated.NOTEBOOKS:
        text = generated.fill((DOCS / "notebooks" / f"{name}.md").read_text())
        assert text.startswith("# ")
        assert "```python\n" in text
        assert '<img alt="' in text
        assert ".ipynb" not in text
        for target in re.findall(r"\]\(((?!\w+:)[^)\s]+)\)", text):
            assert (DOCS / "notebooks" / target).exists(), target


def test_a_page_is_filled_where_it_asks(generated: ModuleType) -> None:
    filled = generated.fill("# Title\n\n% generated: commands\n\nThe end.\n")
    assert filled.startswith("# Title\n\n## `secureafl`\n")
    assert filled.endswith("\n\nThe end.\n")


def test_a_page_shows_what_a_benchmark_measured(
    generated: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    assert "Not measured yet: `python benchmarks/round.py`" in generated.fill("% generated: table-round\n")
    assert generated.fill("% generated: figure-round\n") == "\n"
    made = {"title": "A round", "columns": ["", "a | b"], "rows": [["AsyncSGD", "1.00"], ["the default", "1.25"]]}
    found = {"command": "python benchmarks/round.py", "seed": 0, "commit": "abc", "threads": 2}
    written = json.dumps({**found, "tables": [made], "figure": "What a round takes."})
    (tmp_path / "results" / "round.json").write_text(written)
    table = "**A round**\n\n|  | a \\| b |\n| --- | --- |\n| AsyncSGD | 1.00 |\n| the default | 1.25 |\n"
    assert generated.fill("% generated: table-round\n").startswith(table)
    assert "`python benchmarks/round.py`, seed 0, commit abc, 2 threads." in generated.tables("round")
    assert generated.figure("round").startswith("```{figure} ../../results/round.png\n:alt: What a round takes.\n")


def test_plain_docstrings_become_restructured_text() -> None:
    to_rst = extension("docstrings").to_rst
    assert to_rst("Where |g - g_ref| is *small*, `x_` too.") == [r"Where \|g - g\_ref\| is *small*, ``x_`` too.", ""]
    assert to_rst("Two.\n\n    as = it is") == ["Two.", "", "::", "", "    as = it is", ""]
    assert to_rst("one  first\ntwo  second,\n     on") == [
        "``one``",
        "    first",
        "``two``",
        "    second,",
        "    on",
        "",
    ]
    assert to_rst("") == []


def test_every_reason_and_event_is_explained() -> None:
    text = (DOCS / "reference" / "verdicts.md").read_text()
    for word in (*Reason, *Event):
        assert f"`{word}`" in text
