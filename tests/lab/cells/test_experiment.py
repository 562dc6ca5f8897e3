import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.lab.tiny import tiny_cell

from secureafl.errors import SettingsError
from secureafl.lab.attacks import ATTACKS
from secureafl.lab.cells import results
from secureafl.lab.cells.build import build
from secureafl.lab.cells.earlier_names import read_result
from secureafl.lab.cells.experiment import CellStatus, RunSettings, run_cell
from secureafl.lab.simulation.task import Task
from secureafl.server.record.run import repeat
from secureafl.server.review.audit import client_records
from secureafl.server.review.opened import RecordedRun

REPRODUCIBLE = (
    "cell",
    "settings",
    "final",
    "last",
    "detection",
    "fairness",
    "reasons",
    "lipschitz",
    "malicious",
    "digests",
)


def same_part(result: dict[str, Any]) -> str:
    return json.dumps({key: result[key] for key in REPRODUCIBLE}, sort_keys=True)


class PowerCutError(Exception):
    """Ends a run in the middle of a round."""


def cut_at(round_number: int) -> Callable[[CellStatus], None]:
    def progress(status: CellStatus) -> None:
        if status.done == round_number:
            raise PowerCutError

    return progress


def test_a_cell_leaves_its_result_curves_and_arrivals(tiny_source: Path, tmp_path: Path) -> None:
    cell = tiny_cell(tiny_source, attack="scaling", num_estimated=2)
    seen: list[CellStatus] = []
    result = run_cell(cell, tmp_path / "out", seen.append)
    directory = tmp_path / "out" / cell.cell_id()
    assert read_result(directory) == result
    assert sorted(path.name for path in directory.iterdir()) == [
        "arrivals.parquet",
        "curves.parquet",
        "lock",
        "result.json",
    ]
    assert {"ter", "asr", "diverged", "estimation_error"} <= result["final"].keys()
    assert set(pq.read_table(directory / "curves.parquet")["round"].to_pylist()) == {0, 10, 20, 30}
    assert pq.read_table(directory / "arrivals.parquet").num_rows == 30
    assert [status.done for status in seen] == list(range(1, 31))
    assert len(result["malicious"]) == 2


def test_a_result_has_the_recall_of_every_class_and_names_the_worst(tiny_source: Path, tmp_path: Path) -> None:
    cell = tiny_cell(tiny_source, partition="minority", minority_class=3)
    result = run_cell(cell, tmp_path)
    for prefix in ("", "published_"):
        recalls = [result["final"][f"{prefix}recall_{label}"] for label in range(10)]
        assert 1.0 - sum(recalls) / 10 == pytest.approx(result["final"][f"{prefix}ter"])  # ten test images of each
        assert result["final"][f"{prefix}worst_recall"] == min(recalls)
    last = [result["last"][f"recall_{label}"] for label in range(10)]
    assert last[result["worst_class"]["newest"]] == min(last)
    assert result["held_class"] == 3
    curves = pq.read_table(tmp_path / cell.cell_id() / "curves.parquet")
    assert {"recall_3", "published_recall_3", "worst_recall"} <= set(curves["metric"].to_pylist())
    shards, labels = build(cell).simulation.data.shards, build(cell).dataset.train_y
    assert {int(label) for label in labels[shards[7]]} == {3}


def test_the_same_seed_gives_the_same_model_and_another_seed_another(tiny_source: Path, tmp_path: Path) -> None:
    digests = [
        run_cell(tiny_cell(tiny_source, attack="gaussian", seed=seed), tmp_path / out)["digests"]["model"]
        for seed, out in ((0, "first"), (0, "second"), (1, "third"))
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("protocol", ["paper", "virtual-time"])
def test_arrivals_are_the_same_for_every_defense_and_attack(protocol: str, tiny_source: Path, tmp_path: Path) -> None:
    pairs = [("secureafl", "none"), ("asyncsgd", "none"), ("kardam", "sign_flip"), ("zenopp", "gaussian")]
    results = [
        run_cell(tiny_cell(tiny_source, defense=defense, attack=attack, protocol=protocol), tmp_path)
        for defense, attack in pairs
    ]
    assert len({result["digests"]["arrivals"] for result in results}) == 1
    assert len({result["digests"]["model"] for result in results}) == len(pairs)


@pytest.mark.parametrize("attack", ["none", *ATTACKS])
def test_a_cut_run_goes_on_bit_for_bit(attack: str, tiny_source: Path, tmp_path: Path) -> None:
    defense = "asyncsgd" if attack in {"adaptive", "hold"} else "secureafl"  # those two feed a shadow of their own
    cell = tiny_cell(tiny_source, defense=defense, attack=attack, protocol="virtual-time")
    run = RunSettings(snapshot_rounds=7)
    for cut in (9, 23):
        with pytest.raises(PowerCutError):
            run_cell(cell, tmp_path / "cut", cut_at(cut), run)
    resumed, whole = run_cell(cell, tmp_path / "cut", None, run), run_cell(cell, tmp_path / "whole")
    assert resumed["timing"]["resumed_at"] == 21
    assert same_part(resumed) == same_part(whole)
    curves = [(tmp_path / kind / cell.cell_id() / "curves.parquet").read_bytes() for kind in ("cut", "whole")]
    assert curves[0] == curves[1]


def test_regions_go_on_bit_for_bit_and_tell_what_became_of_them(tiny_source: Path, tmp_path: Path) -> None:
    regions = {"num_regions": 4, "report_every": 3, "malicious_regions": 1}
    cell = tiny_cell(tiny_source, attack="sign_flip", protocol="regions", protocol_settings=regions)
    run = RunSettings(snapshot_rounds=7)
    with pytest.raises(PowerCutError):
        run_cell(cell, tmp_path / "cut", cut_at(23), run)
    resumed, whole = run_cell(cell, tmp_path / "cut", None, run), run_cell(cell, tmp_path / "whole")
    assert resumed["timing"]["resumed_at"] == 21
    assert same_part(resumed) == same_part(whole)
    assert resumed["regions"] == whole["regions"]
    found = whole["regions"]
    assert sorted(found["malicious_by_region"]) == [0, 0, 0, 2]  # both malicious clients, in one region
    assert found["num_reports"] == sum(found["reasons"].values()) > 4
    with pytest.raises(SettingsError, match="no one journal"):
        run_cell(cell, tmp_path / "recorded", run=RunSettings(record=tmp_path / "run"))


def test_a_result_names_the_commit_it_began_with(
    tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "commit", lambda: "then")

    def move_on(status: CellStatus) -> None:
        monkeypatch.setattr(results, "commit", lambda: "now")

    found = run_cell(tiny_cell(tiny_source), tmp_path, move_on)
    assert found["provenance"]["commit"] == "then"


def test_a_cell_computes_where_it_is_told_and_says_so(
    tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[str] = []

    def spy(*arguments: Any, device: str) -> Task:
        devices.append(device)
        return Task(*arguments, device=device)

    monkeypatch.setattr("secureafl.lab.cells.build.Task", spy)
    found = run_cell(tiny_cell(tiny_source), tmp_path / "there", run=RunSettings(device="cpu:0"))
    assert found["provenance"]["device"] == "cpu:0"
    usual = run_cell(tiny_cell(tiny_source), tmp_path / "here")
    assert usual["provenance"]["device"] == "cpu"
    assert devices == ["cpu:0", "cpu"]
    assert same_part(found) == same_part(usual)


def test_a_finished_cell_is_not_run_again(tiny_source: Path, tmp_path: Path) -> None:
    cell = tiny_cell(tiny_source)
    first = run_cell(cell, tmp_path)
    assert run_cell(cell, tmp_path, cut_at(1)) == first


@pytest.mark.parametrize("protocol", ["paper", "virtual-time"])
def test_a_recorded_cell_has_the_same_result_and_a_journal_to_audit(
    protocol: str, tiny_source: Path, tmp_path: Path
) -> None:
    cell = tiny_cell(tiny_source, attack="gaussian", protocol=protocol)
    plain = run_cell(cell, tmp_path / "plain")
    recorded = run_cell(cell, tmp_path / "recorded", run=RunSettings(record=tmp_path / "run"))
    assert same_part(plain) == same_part(recorded)
    run = RecordedRun.open(tmp_path / "run")
    machine = run.machine()
    for entry in run.journal.entries(payloads=True):
        repeat(machine, entry, "replay")  # checks the model's hash at every arrival
    assert machine.model.version == cell.rounds
    assert sum(record.arrivals for record in client_records(run)) == cell.rounds
    run.journal.close()


def test_a_sink_gets_the_curves_and_changes_nothing(tiny_source: Path, tmp_path: Path) -> None:
    cell = tiny_cell(tiny_source, attack="gaussian")
    plain = run_cell(cell, tmp_path / "plain")
    watched = run_cell(cell, tmp_path / "watched", run=RunSettings(sinks=(f"tensorboard:{tmp_path / 'board'}",)))
    assert same_part(plain) == same_part(watched)
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    reader = events.EventAccumulator(str(tmp_path / "board" / cell.cell_id()))
    reader.Reload()
    curves = pq.read_table(tmp_path / "watched" / cell.cell_id() / "curves.parquet").to_pylist()
    errors = {row["round"]: pytest.approx(row["value"], rel=1e-6) for row in curves if row["metric"] == "ter"}
    assert {point.step: point.value for point in reader.Scalars("evaluation/ter")} == errors
    accepted = reader.Scalars("server/accepted")
    assert [point.step for point in accepted] == [10, 20, 30]
    arrivals = pq.read_table(tmp_path / "watched" / cell.cell_id() / "arrivals.parquet")["accepted"].to_pylist()
    assert [round(10 * point.value) for point in accepted] == [sum(arrivals[k : k + 10]) for k in (0, 10, 20)]


def test_a_result_says_who_is_left_behind(tiny_source: Path, tmp_path: Path) -> None:
    result = run_cell(tiny_cell(tiny_source, attack="sign_flip", rounds=60), tmp_path)
    found, by_client = result["fairness"], result["detection"]["acceptance_by_client"]
    honest = [share for client, share in enumerate(by_client) if client not in result["malicious"] and share != "nan"]
    assert found["worst_honest_accepted"] == min(honest)
    assert found["worst_honest_accepted"] <= found["worst_group_accepted"] <= 1.0
    assert 0.0 <= found["lowest_honest_vote"] <= len(by_client)
    assert 0.0 <= found["malicious_votes"] < 1.0
    rival = run_cell(tiny_cell(tiny_source, defense="asyncsgd"), tmp_path)["fairness"]
    assert (rival["worst_honest_accepted"], rival["malicious_votes"]) == (1.0, None)
