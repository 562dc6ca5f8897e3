"""Twenty clients, four of them malicious, one shared model: who gets it to the optimum?

Run it:  python examples/first_steps.py
"""

import numpy as np
from rich.console import Console
from rich.table import Table

from secureafl import Machine, MachineSettings, Vector, Verdict, build_defense

NUM_CLIENTS, NUM_MALICIOUS, DIM, ARRIVALS, MAX_DELAY = 20, 4, 30, 800, 10
rng = np.random.default_rng(seed=7)
optimum = rng.normal(size=DIM)
own_optima = optimum + 0.2 * rng.normal(size=(NUM_CLIENTS, DIM))  # clients' data differ a little
curvature = rng.uniform(0.5, 2.0, size=(NUM_CLIENTS, DIM))


def gradient(client: int, params: Vector, noise: np.random.Generator) -> Vector:
    """What a client sends: a noisy gradient of its own quadratic; a malicious one reverses it, ten times as long."""
    honest = curvature[client] * (params - own_optima[client]) + 0.3 * noise.normal(size=DIM)
    return np.asarray(-10 * honest if client < NUM_MALICIOUS else honest, np.float32)


def federate(defense: str) -> tuple[float, list[tuple[int, Verdict]]]:
    """Run one asynchronous federation: each arrival is one random client answering for a model up to 10 steps old."""
    noise = np.random.default_rng(seed=1)  # the same arrivals for every defense
    settings = MachineSettings(server_lr=0.05, keep_recent=MAX_DELAY)
    machine = Machine(build_defense(defense, DIM), np.zeros(DIM, np.float32), settings)
    clients = [machine.enrol(f"hospital-{k}") for k in range(NUM_CLIENTS)]
    audit = []
    for arrival in range(ARRIVALS):
        k = int(noise.integers(NUM_CLIENTS))
        ticket = machine.issue(clients[k], version=int(noise.integers(max(0, arrival - MAX_DELAY), arrival + 1)))
        verdict = machine.receive(ticket.number, gradient(k, machine.model_of(ticket).params, noise))
        audit.append((k, verdict))
    return float(np.linalg.norm(machine.model.params - optimum)), audit


table = Table(
    title=f"{NUM_CLIENTS} clients, {NUM_MALICIOUS} of them malicious, {ARRIVALS} arrivals: distance to the optimum"
)
for column in ("defense", "distance", "honest accepted", "malicious accepted"):
    table.add_column(column, justify="left" if column == "defense" else "right")
table.add_row("(before training)", f"{np.linalg.norm(optimum):.3g}", "", "")
for name in ("asyncsgd", "kardam", "secureafl"):
    distance, audit = federate(name)
    honest = [verdict.accepted for k, verdict in audit if k >= NUM_MALICIOUS]
    malicious = [verdict.accepted for k, verdict in audit if k < NUM_MALICIOUS]
    table.add_row(name, f"{distance:.3g}", f"{np.mean(honest):.0%}", f"{np.mean(malicious):.0%}")
console = Console()
console.print(table)
at, (k, verdict) = [(at, row) for at, row in enumerate(audit) if row[0] < NUM_MALICIOUS and not row[1].accepted][-1]
numbers = ", ".join(f"{key} {value:.3g}" for key, value in verdict.evidence.items())
console.print(f"One line of SecureAFL's audit: arrival {at}, hospital-{k}: [bold red]{verdict.reason}[/] ({numbers})")
