from pathlib import Path

import numpy as np
import pytest
from tests.server.recorded_runs import LIARS, distance, record

from secureafl.errors import SettingsError
from secureafl.server.eject import eject
from secureafl.server.journal import Event
from secureafl.server.recorded import RecordedRun
from secureafl.server.run import Run, StoreSettings

NAMES = [f"client-{k}" for k in LIARS]


def final_model(run: RecordedRun) -> np.ndarray:
    machine = run.machine()
    resumed = Run.resume(machine, StoreSettings(run_dir=run.path))
    resumed.close()
    return machine.model.params


def test_a_poisoned_model_is_repaired_from_the_journal_alone(tmp_path: Path) -> None:
    run = record(tmp_path / "poisoned", 400, defense="asyncsgd", strength=-2.5)
    poisoned = distance(final_model(run))
    repair = eject(run, NAMES, tmp_path / "repaired")
    repaired = RecordedRun.open(tmp_path / "repaired")
    never = record(tmp_path / "never", 400, defense="asyncsgd", liars=())
    left = distance(final_model(repaired))
    assert left < 0.5 * poisoned
    assert left < distance(final_model(never)) + 0.2
    assert repair.kept + repair.removed + repair.left_out == 400
    assert repair.left_out < 0.2 * repair.kept
    for each in (run, repaired, never):
        each.journal.close()


def test_a_run_wrecked_early_is_taken_back_to_its_sound_beginning(tmp_path: Path) -> None:
    run = record(tmp_path / "wrecked", 400, defense="asyncsgd", strength=-1000.0)
    repair = eject(run, NAMES, tmp_path / "repaired")
    repaired = RecordedRun.open(tmp_path / "repaired")
    assert repair.left_out > 200, "answers computed on a wrecked model say nothing"
    assert distance(final_model(repaired)) <= distance(run.first), "no worse than where it began"
    assert sum(1 for _ in repaired.journal.entries(Event.LEFT_OUT)) == repair.left_out
    for each in (run, repaired):
        each.journal.close()


def test_nothing_of_the_ejected_is_left_in_the_new_run(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 100)
    repair = eject(run, NAMES, tmp_path / "repaired")
    repaired = RecordedRun.open(tmp_path / "repaired")
    clients = {entry.client for entry in repaired.journal.entries()}
    assert not clients & set(NAMES)
    assert sum(1 for _ in repaired.journal.entries(Event.ARRIVAL)) == repair.kept
    run.journal.close()
    repaired.journal.close()


def test_ejecting_no_one_changes_nothing(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 100)
    repair = eject(run, [], tmp_path / "same")
    assert repair.removed == 0
    assert repair.distance == 0.0
    run.journal.close()


def test_a_client_nobody_knows_is_an_error(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 10)
    with pytest.raises(SettingsError, match="knows no client nobody; it has client-"):
        eject(run, ["nobody"], tmp_path / "repaired")
    run.journal.close()
