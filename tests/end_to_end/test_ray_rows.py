"""Rows in a Ray cluster of two real nodes: no bit differs, and a run that loses rows stops and is resumed."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.ray_nodes import Cluster, ray_cluster
from tests.support import Quadratic

from secureafl import Machine, Verdict
from secureafl.errors import RowsError
from secureafl.history import RowSettings
from secureafl.history.ray_store import RayRows
from secureafl.server import FederationSettings, Run
from secureafl.server.record.entries import Event

PROBLEM = Quadratic(num_clients=12, dim=3000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster() as found:
        yield found


def settings(run_dir: Path, **changes: object) -> FederationSettings:
    given = {"run_dir": run_dir, "client_returns": "gradient", "server_lr": 0.05, "snapshot_every": 25, **changes}
    return FederationSettings(**given, defense_settings={"max_seats": 8, "history_dtype": "float16"})  # type: ignore[arg-type]


def machine(chosen: FederationSettings) -> Machine:
    return Machine(chosen.make_defense(PROBLEM.dim, seed=1), np.zeros(PROBLEM.dim, np.float32), chosen.machine())


def advance(run: Run) -> Verdict:
    version = run.machine.model.version
    rng = np.random.default_rng(version)
    client = int(rng.integers(PROBLEM.num_clients))
    ticket = run.issue(f"client-{client}")
    delta = PROBLEM.noisy_gradient(client, run.machine.model_of(ticket).params, rng)
    return run.receive(ticket.number, np.float32(-5.0 if client < 2 else 1.0) * delta)


def advance_by(run: Run, count: int) -> None:
    for _ in range(count):
        advance(run)


def state(run: Run) -> dict[str, bytes]:
    return {key: np.ascontiguousarray(value).tobytes() for key, value in run.machine.state_dict().items()}


@pytest.mark.end_to_end
def test_two_nodes_one_killed(cluster: Cluster, tmp_path: Path) -> None:
    """One test, as the second half ends the cluster that the first half needs."""
    in_memory, in_ray = (
        settings(tmp_path / "memory"),
        settings(tmp_path / "ray", rows="ray", ray_address=cluster.address),
    )
    plain, spread = (Run(machine(chosen), chosen, facts=chosen.facts()) for chosen in (in_memory, in_ray))
    store = spread.machine.defense.history.store  # type: ignore[attr-defined]
    assert isinstance(store, RayRows)
    assert len(set(store.nodes)) == 2, "an actor on each node"
    for _ in range(60):
        one, other = advance(plain), advance(spread)
        assert (one.reason, one.evidence) == (other.reason, other.evidence)
        assert np.asarray(one.direction).tobytes() == np.asarray(other.direction).tobytes()
    assert state(plain) == state(spread)

    cluster.nodes[1].kill()
    with pytest.raises(RowsError, match=r"rows in the Ray cluster at .* are lost: .* resume the run"):
        advance_by(spread, 30)
    for _ in range(3):  # nor does anything else go on with what is left
        with pytest.raises(RowsError, match="are lost"):
            advance(spread)
    with pytest.raises(RowsError, match="are lost"):
        spread.snapshot()
    reached = sum(1 for _ in spread.journal.entries(Event.ARRIVAL))
    spread.close()
    while plain.machine.model.version < reached:
        advance(plain)
    resumed = Run.resume(machine(in_ray), in_ray, facts=in_ray.facts())  # with the node that is left
    assert resumed.machine.model.params.tobytes() == plain.machine.model.params.tobytes()
    for _ in range(20):
        assert advance(plain).evidence == advance(resumed).evidence
    resumed.close()
    again = Run.resume(machine(settings(tmp_path / "ray")), settings(tmp_path / "ray"), facts=in_ray.facts())
    assert again.machine.model.params.tobytes() == plain.machine.model.params.tobytes(), (
        "where rows lie does not matter"
    )
    again.close()
    plain.close()


@pytest.mark.end_to_end
def test_no_cluster_is_an_error_that_says_what_to_start() -> None:
    with pytest.raises(RowsError, match=re.escape("cannot reach a Ray cluster at 127.0.0.1:1")):
        RowSettings(rows="ray", ray_address="127.0.0.1:1").row_store(3, np.float32)
