"""A real deployment on loopback: SuperLink, SuperNodes, one process per message, with and without TLS and node keys."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.end_to_end.flower_processes import OF_THE_TEST_APP, Config, Deployment
from tests.end_to_end.journals import arrivals, read_journal, refused, wait_for, wait_for_arrivals, wait_for_event

from secureafl.engines.signing import write_key_pair
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.run import repeat
from secureafl.server.review.opened import RecordedRun
from secureafl.wire import Feedback, rounded

pytestmark = pytest.mark.end_to_end

APP = Path(__file__).parent / "flower_app"


@pytest.mark.parametrize("tls", [pytest.param(False, marks=pytest.mark.campaign), True], ids=["insecure", "tls"])
def test_eight_nodes_two_liars_one_slow_one_killed_one_late(tls: bool, tmp_path: Path) -> None:
    roles: dict[int, Config] = {
        **{index: {"role": "honest"} for index in range(4)},
        4: {"role": "poison"},
        5: {"role": "poison"},
        6: {"role": "slow", "delay": 20.0},
    }
    run_dir = tmp_path / "run"
    with Deployment(tmp_path / "flower", tls=tls, warm=OF_THE_TEST_APP) as deployment:
        nodes = deployment.start_nodes(roles)
        config: Config = {"secureafl.run-dir": str(run_dir), "secureafl.ttl-seconds": 40.0, "delay": 1.0}
        run_id = deployment.submit(APP, {**config, "secureafl.min-nodes": 7, "secureafl.stop-after-seconds": 500.0})
        wait_for_arrivals(run_dir, nodes[0].node_id, 1, timeout=60.0)
        nodes[0].kill()
        late = deployment.start_node(7, {"role": "honest"})
        again = deployment.start_node(0, roles[0])
        so_far = len(arrivals(read_journal(run_dir), again.node_id))
        wait_for_arrivals(run_dir, again.node_id, so_far + 1, timeout=150.0)  # the killed one, once it is back
        for node in [*nodes[1:], late]:
            wait_for_arrivals(run_dir, node.node_id, 1, timeout=60.0)
        if tls:
            assert again.node_id == nodes[0].node_id, "its key makes it the same node"
        else:
            wait_for_event(run_dir, nodes[0].node_id, Event.LEFT, timeout=150.0)
        deployment.end_server()
        deployment.wait(run_id, timeout=60.0)
    rows = read_journal(run_dir)
    fast = max(len(arrivals(rows, node.node_id)) for node in nodes[1:6])
    assert len(arrivals(rows, nodes[6].node_id)) < fast, "the slow one did not hold up the others"
    weights = load_file(run_dir / "model.safetensors")["w"]
    # It began at 0, the honest pull towards 1, and a large `server-lr` makes them overshoot.
    assert abs(float(weights.mean()) - 1.0) < 1.0, "two liars out of eight pull towards -9 in vain"


def test_faulty_nodes_are_on_record_and_the_run_goes_on(tmp_path: Path) -> None:
    roles = ["honest", "honest", "raise", "garbage", "exit", "late-answer"]
    run_dir = tmp_path / "run"
    with Deployment(tmp_path / "flower", warm=OF_THE_TEST_APP) as deployment:
        configs: dict[int, Config] = {
            i: {"role": role, "delay": 300.0 if role == "late-answer" else 0.0} for i, role in enumerate(roles)
        }
        nodes = dict(zip(roles[1:], deployment.start_nodes(configs)[1:], strict=True))
        config: Config = {"secureafl.run-dir": str(run_dir), "secureafl.ttl-seconds": 30.0, "secureafl.min-nodes": 6}
        run_id = deployment.submit(APP, {**config, "secureafl.stop-after-seconds": 300.0})
        ids = {role: node.node_id for role, node in nodes.items()}
        wait_for(run_dir, lambda rows: all(seen(rows, ids).values()), timeout=180.0)
        so_far = len(arrivals(read_journal(run_dir), ids["honest"]))
        wait_for_arrivals(run_dir, ids["honest"], so_far + 1, timeout=60.0)  # and the run goes on
        deployment.end_server()
        deployment.wait(run_id, timeout=60.0)


def seen(rows: list[Entry], ids: dict[str, int]) -> dict[str, bool]:
    """Which of the faults are on record."""
    reasons = {
        role: [(row.event, row.reason) for row in rows if row.client == str(node_id)] for role, node_id in ids.items()
    }
    return {
        "raise": any("cannot train" in reason or "code 2" in reason for _, reason in reasons["raise"]),
        "garbage": (Event.REFUSED, "malformed") in reasons["garbage"],
        "exit": any(event in {Event.CLIENT_ERROR, Event.EXPIRED} for event, _ in reasons["exit"]),
        "late-answer": any(event is Event.EXPIRED for event, _ in reasons["late-answer"]),
    }


def test_a_forged_answer_is_taken_without_signing_and_refused_with_it(tmp_path: Path) -> None:
    """TLS and node keys are on. The forger answers in the victim's name for the victim's own ticket."""
    keys = {index: tmp_path / f"signing-{index}.pem" for index in (0, 1)}
    public = {index: write_key_pair(path) for index, path in keys.items()}
    outcome: dict[str, list[Entry]] = {}
    with Deployment(tmp_path / "flower", tls=True) as deployment:
        victim, forger = deployment.start_nodes(
            {
                index: {"role": role, "secureafl-key": str(keys[index])}
                for index, role in enumerate(["victim", "forger"])
            }
        )
        keys_file = tmp_path / "keys.toml"
        keys_file.write_text(f'{victim.node_id} = "{public[0]}"\n{forger.node_id} = "{public[1]}"\n')
        for name, used_keys in {"unsigned": "", "signed": str(keys_file)}.items():
            run_dir, leak = tmp_path / name, tmp_path / f"{name}.json"
            config: Config = {
                "leak": str(leak),
                "secureafl.defense": "asyncsgd",
                "secureafl.min-nodes": 2,
                "secureafl.run-dir": str(run_dir),
                "secureafl.keys-file": used_keys,
                "secureafl.stop-after-updates": 1,
                "secureafl.stop-after-seconds": 90.0,
            }
            deployment.run(APP, config, timeout=150.0)
            assert json.loads(leak.read_text())["node_id"] == str(victim.node_id)
            outcome[name] = read_journal(run_dir)
    [taken] = arrivals(outcome["unsigned"], victim.node_id)
    assert taken.accepted, "without signing, the server takes the forger's word"
    assert taken.evidence["norm"] == pytest.approx(1000.0 * 1000**0.5), (
        "it was the forger's content in the victim's name"
    )
    assert {row.reason for row in refused(outcome["signed"], victim.node_id)} == {"bad-signature"}
    assert all(row.evidence["norm"] < 1000.0 for row in arrivals(outcome["signed"], victim.node_id)), "its own content"


def test_signed_updates_over_a_smaller_wire_from_those_who_can(tmp_path: Path) -> None:
    """Two nodes compress, one has never heard of it; all sign. What is on record leads to the same model again, and is
    what error feedback over all of a node's updates makes, each of them computed by a process of its own.
    """
    run_dir, keys_file = tmp_path / "run", tmp_path / "keys.toml"
    keys = [tmp_path / f"signing-{index}.pem" for index in range(3)]
    public = [write_key_pair(path) for path in keys]
    with Deployment(tmp_path / "flower") as deployment:
        nodes = deployment.start_nodes(
            {i: {"role": "uneven", "secureafl-key": str(keys[i]), "compresses": i < 2} for i in range(3)}
        )
        keys_file.write_text("".join(f'{node.node_id} = "{key}"\n' for node, key in zip(nodes, public, strict=True)))
        config: Config = {
            "secureafl.min-nodes": 3,
            "secureafl.run-dir": str(run_dir),
            "secureafl.keys-file": str(keys_file),
            "secureafl.wire": "int8",
            "secureafl.stop-after-updates": 12,
            "secureafl.stop-after-seconds": 400.0,
        }
        deployment.run(APP, config, timeout=500.0)
    with RecordedRun.open(run_dir) as run:
        rows = list(run.journal.entries(Event.ARRIVAL, payloads=True))
        machine, uneven = run.machine(), np.linspace(-1.0, 1.0, 1000) ** 3
        feedback = {str(node.node_id): Feedback("int8") for node in nodes[:2]}
        for row in run.journal.entries(payloads=True):
            if row.event is Event.ARRIVAL and row.client in feedback:
                ticket = machine.ticket(row.ticket or 0)
                assert ticket is not None
                own, given = feedback[row.client], machine.model_of(ticket).params
                if own.residual is not None:  # its first update has shown that it can read this
                    given = rounded(given)
                trained = (given + 0.5 * (uneven - given)).astype(np.float32)
                assert own.compress(given - trained) == row.payload
            repeat(machine, row, str(run_dir))
    sizes = {str(node.node_id): {len(row.payload or b"") for row in arrivals(rows, node.node_id)} for node in nodes}
    assert list(sizes.values()) == [{16 + 4 * 4 + 1000 + 1}] * 2 + [{4000}]
    assert min(len(arrivals(rows, node.node_id)) for node in nodes) >= 2, "each got a second model, compressed or not"
    assert not [row for row in read_journal(run_dir) if row.event in {Event.REFUSED, Event.CLIENT_ERROR}]
