from pathlib import Path

from tests.server.recorded_runs import LIARS, record
from tests.view.journals import write_arrivals

from secureafl.server.record.sqlite import create_journal
from secureafl.server.review.audit import client_records
from secureafl.view.overview import overview, worst_clients
from secureafl.view.reader import RunReader, State


def test_figures_add_up_to_those_of_the_audit(tmp_path: Path) -> None:
    run = record(tmp_path, 200)
    now = overview(RunReader(tmp_path))
    records = client_records(run)
    assert (now.version, now.num_clients, now.defense) == (200, len(records), "secureafl")
    assert now.accepted == sum(found.accepted for found in records)
    assert now.rejected == sum(now.rejections.values()) == 200 - now.accepted
    assert now.measure == "lipschitz_factor"
    assert now.threshold is not None
    assert now.typical is not None
    run.journal.close()


def test_worked_out_by_hand(tmp_path: Path) -> None:
    now = overview(RunReader(write_arrivals(tmp_path, 40, rate=4.0)))
    assert (now.accepted, now.rejected, now.rejections) == (30, 10, {"changed-too-abruptly": 10})
    assert now.rate == now.mean_rate == 4.0
    assert (now.staleness, now.max_staleness) == (2.0, 4.0)  # 0, 1, 2, 3, 4 in turn
    assert (now.typical, now.threshold) == (2.0, 10.0)
    assert (now.seconds, now.state) == (10.0, State.FINISHED)


def test_recent_figures_look_back_on_a_hundred_arrivals(tmp_path: Path) -> None:
    reader = RunReader(write_arrivals(tmp_path, 300))
    reader.arrivals.table.staleness[:200] = 1000.0
    assert overview(reader).max_staleness == 4.0


def test_a_run_without_arrivals_has_no_figures(tmp_path: Path) -> None:
    journal = create_journal(tmp_path / "run.db")
    now = overview(RunReader(tmp_path))
    assert (now.version, now.rate, now.staleness, now.typical, now.threshold) == (0, None, None, None, None)
    journal.close()


def test_the_worst_are_those_rejected_most_and_nobody_else(tmp_path: Path) -> None:
    record(tmp_path / "attacked", 200).journal.close()
    worst = worst_clients(RunReader(tmp_path / "attacked"), 2)
    assert {found.client for found in worst} == {f"client-{k}" for k in LIARS}
    record(tmp_path / "peace", 40, defense="asyncsgd").journal.close()
    peace = RunReader(tmp_path / "peace")
    assert worst_clients(peace, 5) == []
    assert overview(peace).measure == "norm", "a defense that judges by nothing still reports lengths"
