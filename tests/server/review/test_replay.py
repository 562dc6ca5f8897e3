from pathlib import Path

import numpy as np
import pytest
from tests.server.recorded_runs import LIARS, distance, record

from secureafl import Machine
from secureafl.errors import StoreError, UnknownSettingError
from secureafl.server import FederationSettings
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Run
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare, replay


def test_the_same_defense_judges_the_same_and_ends_at_the_same_model(tmp_path: Path) -> None:
    run = record(tmp_path, 150)
    for judgement in replay(run, run.machine()):
        assert judgement.then == judgement.now
        assert judgement.distance == 0.0
    run.journal.close()


def test_another_defense_says_who_would_have_been_rejected(tmp_path: Path) -> None:
    run = record(tmp_path, 300, defense="asyncsgd", strength=-1.0)
    found = compare(
        run, run.machine(defense="secureafl"), evaluate=lambda w: {"distance": distance(w)}, evaluate_every=50
    )
    liars = [f"client-{k}" for k in LIARS]
    assert found.num_arrivals == 300
    assert all(found.accepted_then[name] == found.arrivals[name] for name in found.arrivals)
    assert sum(found.accepted_now.values()) < 300
    assert found.distances[-1] > 0.0
    assert len(found.scores) == 6
    assert set(liars) <= set(found.arrivals)
    run.journal.close()


def test_settings_can_be_changed_alone(tmp_path: Path) -> None:
    run = record(tmp_path, 150)
    stricter = compare(run, run.machine(changes={"percentile": 0.3}))
    assert sum(stricter.accepted_now.values()) < sum(stricter.accepted_then.values())
    with pytest.raises(UnknownSettingError, match="did you mean 'percentile'"):
        run.machine(changes={"percentil": 0.3})
    run.journal.close()


def test_a_live_run_can_be_read(tmp_path: Path) -> None:
    first = record(tmp_path, 30)
    second = RecordedRun.open(tmp_path)
    assert sum(1 for _ in second.journal.entries(Event.ARRIVAL)) == 30
    first.journal.close()
    second.journal.close()


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no run: there is no run\.db in it"):
        RecordedRun.open(tmp_path)


def test_a_region_is_replayed_and_resumed_with_the_moves_from_above(tmp_path: Path) -> None:
    settings = FederationSettings(run_dir=tmp_path, server_lr=0.5, upstream="top", snapshot_every=4)

    def fresh() -> Machine:
        return Machine(settings.make_defense(3), np.zeros(3, np.float32), settings.machine())

    machine, rng = fresh(), np.random.default_rng(0)
    run = Run(machine, settings, facts=settings.facts())
    for number in range(10):
        name = "top" if number % 5 == 4 else f"client-{number % 3}"
        run.receive(run.issue(name).number, rng.standard_normal(3).astype(np.float32))
    run.close()
    recorded = RecordedRun.open(tmp_path)
    judged = list(replay(recorded, recorded.machine()))
    assert [judgement.now for judgement in judged].count("from-above") == 2
    assert all(judgement.then == judgement.now and judgement.distance == 0.0 for judgement in judged)
    recorded.journal.close()
    again = fresh()
    Run.resume(again, settings, facts=settings.facts()).close()
    assert np.array_equal(again.model.params, machine.model.params)
