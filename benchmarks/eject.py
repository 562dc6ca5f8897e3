"""Can a poisoned model be repaired from its journal? Fashion-MNIST, plain asynchronous SGD, a fifth malicious.

    python benchmarks/eject.py [--quick]

Three models are compared by their test error rate: the one the run ended with; the one `secureafl eject` makes of its
journal, asking no client for anything; and the one of a run that never had the malicious clients, whose others computed
anew. No figure: a picture would say no more than the table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from _common import Table, main

from secureafl.lab.cells import scores
from secureafl.lab.cells.build import Laboratory, build
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.simulation.task import make_deterministic
from secureafl.lab.streams import stream
from secureafl.server import Machine
from secureafl.server.review.eject import eject
from secureafl.server.review.opened import RecordedRun
from secureafl.types import ClientId, Vector

SEED = 0
ROUNDS, QUICK_ROUNDS = 3_000, 30
ATTACKS: dict[str, tuple[str, dict[str, float]]] = {
    "sign flip": ("sign_flip", {}),
    "sign flip x 10": ("sign_flip", {"scale": 10.0}),
    "scaling": ("scaling", {}),
}
QUICK_CELL: dict[str, Any] = {"architecture": "small-cnn", "num_clients": 10}


def error_rate(lab: Laboratory, params: Vector) -> float:
    return scores.error_rate(lab.task.predict(params, lab.dataset.test_x), lab.dataset.test_y)


def never_poisoned(lab: Laboratory, run: RecordedRun, rounds: int) -> Machine:
    """The same arrivals without those of malicious clients, every gradient on the model that its client now gets."""
    machine, data = run.machine(), lab.simulation.data
    names = {f"client-{client}": ClientId(client) for client in range(len(data.shards))}
    versions = [0]
    for entry in run.journal.entries():
        if entry.event != "issued" or len(versions) > rounds:
            continue
        client = names[entry.client]
        if client not in lab.malicious:
            ticket = machine.issue(machine.enrol(entry.client), versions[entry.base or 0])
            indices = data.draw(client, stream(lab.settings.seed, f"batch/{client}", entry.version))
            batch = data.batch(indices)
            machine.receive(ticket.number, lab.task.gradient(machine.model_of(ticket).params, batch.x, batch.y))
        versions.append(machine.model.version)
    return machine


def attacked(attack: str, rounds: int, cell: dict[str, Any]) -> dict[str, Any]:
    name, attack_settings = ATTACKS[attack]
    settings = CellSettings(
        defense="asyncsgd", attack=name, attack_settings=attack_settings, rounds=rounds, seed=SEED, **cell
    )
    with tempfile.TemporaryDirectory() as directory:
        lab = build(settings, record=Path(directory) / "run")
        while lab.simulation.machine.model.version < rounds:
            lab.simulation.step()
        assert lab.recorder is not None
        lab.recorder.close()
        run = RecordedRun.open(Path(directory) / "run")
        malicious = [f"client-{client}" for client in sorted(lab.malicious)]
        repair = eject(run, malicious, Path(directory) / "repaired")
        repaired = RecordedRun.open(Path(directory) / "repaired")
        version, _, sha256 = repaired.journal.snapshots()[0]
        mended = repaired.machine()
        mended.load_state_dict(repaired.snapshots.read(version, sha256))
        models = {
            "poisoned": lab.simulation.machine.model.params,
            "repaired": mended.model.params,
            "never poisoned": never_poisoned(lab, run, rounds).model.params,
        }
    rates = {which: error_rate(lab, params) for which, params in models.items()}
    return {**rates, "rounds": rounds, "malicious": len(malicious), "left_out": repair.left_out}


def measure(quick: bool) -> dict[str, Any]:
    make_deterministic()
    rounds, cell = (QUICK_ROUNDS, QUICK_CELL) if quick else (ROUNDS, {})
    return {attack: attacked(attack, rounds, cell) for attack in ATTACKS}


def tables(results: dict[str, Any]) -> list[Table]:
    models = ("poisoned", "repaired", "never poisoned")
    rows = [
        (attack, *(f"{found[which]:.3f}" for which in models), f"{found['left_out']:,}")
        for attack, found in results.items()
    ]
    return [Table(("attack", *models, "updates of others left out"), rows)]


if __name__ == "__main__":
    main(__doc__, "eject", measure, tables, seed=SEED)
