"""The laboratory from Python: `from secureafl import lab`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from matplotlib.figure import Figure
from tests.lab.tiny import tiny_cell

import secureafl
from secureafl import lab
from secureafl.defenses import AsyncSGD, DefenseEntry
from secureafl.errors import SecureAFLError, SettingsError, UnknownSettingError
from secureafl.lab.attacks import AttackEntry
from secureafl.lab.attacks.attack import Stateless, View
from secureafl.plugins import MAIN
from secureafl.types import Array, Model, Reason, StateDict, Update, Vector, Verdict

GATE = """
from secureafl import Verdict
from secureafl.lab.attacks.attack import Stateless


class Gate:
    def __init__(self, dim):
        self.dim = dim

    def step(self, update, model):
        return Verdict(True, "accepted", update.delta)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass
"""


def tiny(source: Path, **changes: Any) -> dict[str, Any]:
    """The settings of a tiny cell as plain words."""
    return tiny_cell(source, **changes).model_dump(exclude_unset=True)


class Trusting:
    """Takes every update as it is."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def step(self, update: Update, model: Model) -> Verdict:
        return Verdict(True, Reason.ACCEPTED, update.delta, {})

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to load."""


class Shout(Stateless):
    """So many times the honest gradient, the wrong way."""

    def __init__(self, times: float = 5.0) -> None:
        self.times = times

    def update(self, view: View) -> Vector:
        return np.asarray(-self.times * view.gradient, np.float32)


def test_public_names() -> None:
    assert lab.__all__ == [
        "RECIPES",
        "CellResult",
        "CellSettings",
        "Results",
        "RunRecord",
        "compare",
        "open_cell",
        "open_record",
        "open_sweep",
        "run",
        "sweep",
    ]
    assert set(lab.__all__) <= set(dir(lab))
    assert all(getattr(lab, name) is not None for name in lab.__all__)
    with pytest.raises(AttributeError, match="swep"):
        lab.swep  # noqa: B018


def test_the_name_of_the_laboratory_alone_loads_nothing_heavy() -> None:
    code = (
        "from secureafl import lab; import sys; print([n for n in ('torch', 'matplotlib', 'ray') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for name in [name for name in sys.modules if name.startswith(("secureafl.lab.api", "secureafl.lab.reports"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match=r"lab.run needs 'matplotlib.figure'; run: pip install"):
        lab.run  # noqa: B018


def test_a_cell_has_numbers_tables_and_a_figure(tiny_source: Path, tmp_path: Path) -> None:
    cell = lab.run(**tiny(tiny_source, attack="scaling"), out=tmp_path)
    assert cell.settings["attack"] == "scaling"
    assert cell.metrics["ter"] == cell.summary["last"]["published_ter"]
    assert cell.metrics["newest_asr"] == cell.summary["last"]["asr"]
    assert cell.curves.column_names == ["round", "metric", "value"]
    arrivals = cell.arrivals
    assert arrivals.num_rows == 30
    assert arrivals.column_names[:3] == ["round", "client", "malicious"]
    by = {row["client"]: row["malicious"] for row in arrivals.to_pylist()}
    assert {client for client, malicious in by.items() if malicious} <= set(cell.summary["malicious"])
    assert isinstance(cell.plot(), Figure)
    assert cell.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert cell.save_plot().exists()
    assert "ter 0." in repr(cell)
    again = lab.open_cell(cell.directory)
    assert again.summary == cell.summary


def test_a_finished_cell_is_read_and_not_run_again(tiny_source: Path, tmp_path: Path) -> None:
    first = lab.run(**tiny(tiny_source), out=tmp_path)
    stamp = (first.directory / "result.json").stat().st_mtime_ns
    assert lab.run(tiny_cell(tiny_source), out=tmp_path).summary == first.summary
    assert (first.directory / "result.json").stat().st_mtime_ns == stamp
    assert lab.run(tiny_cell(tiny_source), out=tmp_path, seed=1).name != first.name
    with pytest.raises(SettingsError, match="record it with another folder"):
        lab.run(**tiny(tiny_source), out=tmp_path, record=tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["secureafl", "kardam"])
def test_this_process_and_a_worker_end_with_the_same_bits(defense: str, tiny_source: Path, tmp_path: Path) -> None:
    """A larger model, and as many threads as there are: sums that were spread over threads would differ."""
    cell = tiny_cell(tiny_source, defense=defense, attack="gaussian", architecture="cnn")
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        here = lab.run(cell, out=tmp_path / "here")
        assert torch.get_num_threads() == (os.cpu_count() or 1)
    finally:
        torch.set_num_threads(threads)
    assert torch.are_deterministic_algorithms_enabled() == strict
    worker = lab.run(cell, out=tmp_path / "worker", own_process=True)
    assert here.summary["digests"] == worker.summary["digests"]
    assert here.summary["last"] == worker.summary["last"]


def test_an_own_class_runs_as_it_is(tiny_source: Path, tmp_path: Path) -> None:
    own = lab.run(**tiny(tiny_source), defense=Trusting, attack=Shout, out=tmp_path)
    assert own.settings["defense"] == f"{__name__}:Trusting"
    assert own.metrics["malicious_accepted"] == 1.0
    plain = lab.run(**tiny(tiny_source), defense="asyncsgd", attack=Shout, out=tmp_path)
    assert own.summary["digests"] == plain.summary["digests"]  # AsyncSGD trusts everyone, too
    built_in = lab.run(**tiny(tiny_source), defense=AsyncSGD, attack=Shout, out=tmp_path)
    assert built_in.name == plain.name


def test_what_no_module_has_runs_too_and_every_time(tiny_source: Path, tmp_path: Path) -> None:
    def defense(sign: float) -> type[Trusting]:
        class Local(Trusting):
            def step(self, update: Update, model: Model) -> Verdict:
                return Verdict(True, Reason.ACCEPTED, np.float32(sign) * update.delta, {})

        return Local

    digests = [
        lab.run(**tiny(tiny_source), defense=defense(sign), out=tmp_path).summary["digests"]["model"]
        for sign in (1.0, -1.0, 1.0)
    ]
    assert digests[0] == digests[2] != digests[1]  # the file is the same for all three, and the closure is not
    entry = DefenseEntry(lambda dim: Trusting(dim))
    cell = lab.run(**tiny(tiny_source), defense=entry, out=tmp_path)
    assert cell.settings["defense"].startswith(f"{MAIN}:")
    assert cell.summary["digests"]["model"] == digests[0]


def test_an_attack_that_is_made_already_is_copied_for_each_run(tiny_source: Path, tmp_path: Path) -> None:
    class Once(Shout):
        """Shouts, and keeps count."""

        count = 0

        def update(self, view: View) -> Vector:
            self.count += 1
            return super().update(view) * np.float32(self.count)

    attack = Once(2.0)
    first = lab.run(**tiny(tiny_source), defense="asyncsgd", attack=attack, out=tmp_path / "1")
    second = lab.run(**tiny(tiny_source), defense="asyncsgd", attack=attack, out=tmp_path / "2")
    assert first.summary["digests"] == second.summary["digests"]
    assert attack.count == 0
    louder = lab.run(**tiny(tiny_source), defense="asyncsgd", attack=Once(3.0), out=tmp_path / "1")
    assert louder.summary["digests"]["model"] != first.summary["digests"]["model"]


def test_an_error_in_own_code_is_raised_where_it_is(tiny_source: Path, tmp_path: Path) -> None:
    class Broken(Trusting):
        def step(self, update: Update, model: Model) -> Verdict:
            raise ZeroDivisionError("in my own code")

    with pytest.raises(ZeroDivisionError, match="in my own code"):
        lab.run(**tiny(tiny_source), defense=Broken, out=tmp_path)
    with pytest.raises(SettingsError, match="save it in a module"):
        lab.run(**tiny(tiny_source), defense=Broken, out=tmp_path, own_process=True)
    with pytest.raises(SettingsError, match="is a Shout, and no defense: name a class"):
        lab.run(**tiny(tiny_source), defense=Shout(), out=tmp_path)
    with pytest.raises(UnknownSettingError, match="did you mean 'rounds'"):
        lab.run(round=3, out=tmp_path)


def test_what_another_process_typed_is_not_found() -> None:
    with pytest.raises(SettingsError, match="was defined in another process: save it in a module"):
        lab.CellSettings(defense=f"{MAIN}:Gone")


@pytest.mark.slow
def test_a_script_may_run_its_own_class(tiny_source: Path, tmp_path: Path) -> None:
    """A script's class has a file: unchanged, its cell is read the second time."""
    settings = json.dumps({**tiny(tiny_source), "out": str(tmp_path / "out")})
    script = tmp_path / "mine.py"
    script.write_text(
        f"{GATE}\nfrom secureafl import lab\ncell = lab.run(defense=Gate, **{settings})\nprint(cell.name)\n"
    )
    names = [
        subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert names[0] == names[1]
    assert names[0].startswith(f"fashion-mnist-{MAIN}.Gate-none-")
    script.write_text(script.read_text().replace("update.delta", "-update.delta"))
    changed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert changed != names[0]


def test_a_grid_becomes_a_table_and_figures(tiny_source: Path, tmp_path: Path) -> None:
    settings = tiny(tiny_source)
    del settings["batch_size"]
    grid: dict[str, list[Any]] = {
        "defense": ["asyncsgd", Trusting],
        "attack": ["none", Shout(3.0)],
        "batch_size": [4, 8],
    }
    results = lab.sweep(grid=grid, name="mine", out=tmp_path, **settings)
    assert len(results) == 8
    table = results.table()
    assert isinstance(table, pa.Table)
    assert table.column_names[:5] == ["dataset", "defense", "attack", "seed", "batch_size"]
    assert {"ter", "honest_accepted", "cell"} <= set(table.column_names)
    assert sorted(set(table["batch_size"].to_pylist())) == [4, 8]
    frame = results.to_pandas()
    assert list(frame.columns) == table.column_names
    assert frame.groupby("defense")["ter"].mean().nunique() == 1  # both take all updates
    assert set(results.figures()) >= {"heat-map", "curves"}
    assert len(results.plot().axes[0].get_lines()) == 8
    curves = results.curves()
    assert curves.column_names == ["dataset", "defense", "attack", "seed", "batch_size", "round", "metric", "value"]
    assert curves.num_rows == sum(cell.curves.num_rows for cell in results)
    chosen = results.select(defense=Trusting, batch_size=4)
    assert [cell.settings["batch_size"] for cell in chosen] == [4, 4]
    assert "<table" in results._repr_html_()
    again = lab.open_sweep("mine", tmp_path)
    assert [cell.name for cell in again] == [cell.name for cell in results]
    page = again.write_report()
    assert "Trusting" in page.read_text()


@pytest.mark.slow
def test_a_sweep_without_its_own_code_reports_in_another_process(tiny_source: Path, tmp_path: Path) -> None:
    lab.sweep(grid={"attack": [Shout(2.0)]}, name="typed", out=tmp_path, **tiny(tiny_source))
    code = f"from secureafl import lab; print(lab.open_sweep('typed', {str(tmp_path)!r}).write_report())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).exists()


def test_a_recipe_is_swept_with_changes_and_only_what_is_wanted(tiny_source: Path, tmp_path: Path) -> None:
    def wanted(cell: lab.CellSettings, row: str) -> bool:
        return cell.attack == "none" and row == "asyncsgd"

    changes: dict[str, Any] = {
        "rounds": 5,
        "source": str(tiny_source),
        "num_clients": 8,
        "batch_size": 4,
        "num_test": 20,
    }
    results = lab.sweep("demo", wanted=wanted, out=tmp_path, **changes)
    assert [(cell.settings["defense"], cell.settings["attack"]) for cell in results] == [("asyncsgd", "none")]
    assert results.name == "demo"
    with pytest.raises(SettingsError, match="no cell of 'demo' is left"):
        lab.sweep("demo", wanted=lambda cell, row: False, out=tmp_path)
    with pytest.raises(SettingsError, match="leave grid and cells out"):
        lab.sweep("demo", grid={"attack": ["none"]}, out=tmp_path)
    with pytest.raises(SettingsError, match="give the grid another name"):
        lab.sweep(grid={"attack": ["none"]}, name="demo", out=tmp_path)


def test_two_objects_of_one_name_are_not_confused(tiny_source: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="two different objects are called __main__:Shout"):
        lab.sweep(grid={"attack": [Shout(2.0), Shout(3.0)]}, out=tmp_path, **tiny(tiny_source))


def test_a_failed_cell_is_named_and_the_others_are_kept(tiny_source: Path, tmp_path: Path) -> None:
    class Refusing(Shout):
        def update(self, view: View) -> Vector:
            raise SecureAFLError("not today")

    with pytest.raises(SecureAFLError, match=r"Refusing.* failed: not today"):
        lab.sweep(grid={"attack": [Refusing, "none"]}, name="half", out=tmp_path, **tiny(tiny_source))
    assert len(lab.open_sweep("half", tmp_path)) == 1


def test_cells_are_compared_by_what_differs(tiny_source: Path, tmp_path: Path) -> None:
    cells = [
        lab.run(**tiny(tiny_source, attack="scaling"), out=tmp_path, defense_settings={"percentile": percentile})
        for percentile in (0.5, 0.9)
    ]
    found = lab.compare(*cells)
    table = found.table()
    assert table["defense_settings.percentile"].to_pylist() == [0.5, 0.9]
    assert "batch_size" not in table.column_names
    figure = found.plot()
    labels = [line.get_label() for line in figure.axes[0].get_lines() if not str(line.get_label()).startswith("_")]
    assert labels == ["SecureAFL, percentile=0.5", "SecureAFL, percentile=0.9"]
    assert "attack success rate" in figure.axes[0].get_ylabel()
    assert len(lab.compare(found, cells[0].directory)) == 3
    with pytest.raises(SettingsError, match="only a sweep has a report"):
        found.write_report()
    with pytest.raises(SettingsError, match="nothing to compare"):
        lab.compare()
    with pytest.raises(SettingsError, match="no finished experiment"):
        lab.open_cell(tmp_path)


def test_a_made_attack_can_say_that_it_is_a_backdoor(tiny_source: Path, tmp_path: Path) -> None:
    cell = lab.run(**tiny(tiny_source), attack=AttackEntry(Shout, is_backdoor=True), out=tmp_path)
    assert "asr" in cell.metrics


def test_a_record_becomes_tables_words_and_a_figure(tiny_source: Path, tmp_path: Path) -> None:
    cell = lab.run(tiny_cell(tiny_source, attack="gaussian"), out=tmp_path, record=tmp_path / "run")
    record = lab.open_record(str(tmp_path / "run"))
    assert record.facts["defense"] == "secureafl"
    arrivals = record.arrivals()
    assert arrivals["update"].to_pylist() == list(range(30))
    assert arrivals["accepted"].to_pylist() == cell.arrivals["accepted"].to_pylist()
    clients = record.clients().to_pylist()
    assert sum(row["arrivals"] for row in clients) == 30
    assert [row["share_accepted"] for row in clients] == sorted(row["share_accepted"] for row in clients)
    assert record.explain(3).startswith("Arrival 3: client ")
    assert isinstance(record.plot(), Figure)
    with pytest.raises(SettingsError, match="has no arrival 30"):
        record.explain(30)
    with pytest.raises(SecureAFLError):
        lab.open_record(tmp_path / "nowhere")


def test_the_version_is_in_every_result(tiny_source: Path, tmp_path: Path) -> None:
    assert lab.run(**tiny(tiny_source), out=tmp_path).summary["provenance"]["version"] == secureafl.__version__
