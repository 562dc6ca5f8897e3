from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.server.recorded_runs import LIARS, PROBLEM, record

from secureafl.server.review.audit import client_records
from secureafl.server.review.influence import influence


def test_shares_add_up_and_liars_have_the_least(tmp_path: Path) -> None:
    run = record(tmp_path, 250)
    shares = influence(run)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert len(shares) == PROBLEM.num_clients
    liars = [shares[f"client-{k}"] for k in LIARS]
    honest = [share for client, share in shares.items() if client not in {f"client-{k}" for k in LIARS}]
    assert max(liars) < np.mean(honest)
    assert {record.client: record.influence for record in client_records(run)} == shares
    run.journal.close()


def test_damaged_snapshots_are_passed_over(tmp_path: Path) -> None:
    run = record(tmp_path, 250)
    newest = tmp_path / "snapshots" / "000000000250.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert sum(influence(run).values()) == pytest.approx(1.0)
    run.journal.close()


def test_a_defense_without_a_median_knows_no_influence(tmp_path: Path) -> None:
    run = record(tmp_path, 60, defense="asyncsgd", strength=1.0)
    assert influence(run) == {}
    assert all(record.influence is None for record in client_records(run))
    run.journal.close()


def test_a_run_whose_defense_needs_trusted_data_can_be_audited(tmp_path: Path) -> None:
    run = record(tmp_path, 60, defense="zenopp")
    assert influence(run) == {}
    assert sum(found.arrivals for found in client_records(run)) == 60
    run.journal.close()


def test_a_run_under_a_rule_of_ones_own_can_be_audited(tmp_path: Path) -> None:
    run = record(tmp_path, 60, defense="asyncsgd", strength=1.0)
    claimed = replace(run, facts={**run.facts, "defense": "secureafl"})
    assert influence(claimed) == {}
    run.journal.close()
