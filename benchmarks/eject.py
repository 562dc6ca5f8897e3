"""Can a poisoned model be repaired from its journal? Fashion-MNIST, plain asynchronous SGD, one client in five lies.

    python benchmarks/eject.py

Three models are compared by their test error rate: the one the run ended with; the one `secureafl eject` makes of its
journal, asking no client for anything; and the one of a run that never had the liars, whose clients answered anew.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _common import write
from rich.console import Console
from rich.table import Table

from secureafl.lab.cells import scores
from secureafl.lab.cells.build import Laboratory, build
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.simulation.task import make_deterministic
from secureafl.lab.streams import stream
from secureafl.server import Machine
from secureafl.server.review.eject import eject
from secureafl.server.review.opened import RecordedRun
from secureafl.types import Vector

ATTACKS: dict[str, tuple[str, dict[str, float]]] = {
    "sign flip": ("sign_flip", {}),
    "sign flip x 10": ("sign_flip", {"scale": 10.0}),
    "scaling": ("scaling", {}),
}


def error_rate(lab: Laboratory, params: Vector) -> float:
    return scores.error_rate(lab.task.predict(params, lab.dataset.test_x), lab.dataset.test_y)


def without_liars(lab: Laboratory, run: RecordedRun, rounds: int) -> Machine:
    """The same arrivals without the liars' ones, every client computing its gradient on the model it now gets."""
    machine, data = run.machine(), lab.simulation.data
    names = {f"client-{client}": client for client in range(len(data.shards))}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make_deterministic()
    table = Table("attack", "poisoned", "repaired", "never poisoned", "difference", "left out", title="Test error rate")
    results = {}
    for attack, (name, attack_settings) in ATTACKS.items():
        with tempfile.TemporaryDirectory() as directory:
            settings = CellSettings(
                defense="asyncsgd", attack=name, attack_settings=attack_settings, rounds=args.rounds, seed=args.seed
            )
            lab = build(settings, record=Path(directory) / "run")
            while lab.simulation.machine.model.version < args.rounds:
                lab.simulation.step()
            assert lab.recorder is not None
            lab.recorder.close()
            run = RecordedRun.open(Path(directory) / "run")
            liars = [f"client-{client}" for client in sorted(lab.malicious)]
            repair = eject(run, liars, Path(directory) / "repaired")
            repaired = RecordedRun.open(Path(directory) / "repaired")
            version, _, sha256 = repaired.journal.snapshots()[0]
            mended = repaired.machine()
            mended.load_state_dict(repaired.snapshots.read(version, sha256))
            models = {
                "poisoned": lab.simulation.machine.model.params,
                "repaired": mended.model.params,
                "never poisoned": without_liars(lab, run, args.rounds).model.params,
            }
        rates = {name: error_rate(lab, params) for name, params in models.items()}
        results[attack] = {**rates, "rounds": args.rounds, "liars": len(liars), "left_out": repair.left_out}
        difference = rates["repaired"] - rates["never poisoned"]
        table.add_row(attack, *(f"{rate:.3f}" for rate in rates.values()), f"{difference:+.3f}", str(repair.left_out))
    Console().print(table)
    print(write("eject", args.seed, results))


if __name__ == "__main__":
    main()
