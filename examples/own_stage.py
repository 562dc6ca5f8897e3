"""Put a stage of your own into SecureAFL: a judge that rejects updates much longer than the sender's own last ones.

Run it:  python examples/own_stage.py
"""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
from rich.console import Console

from secureafl import Machine, MachineSettings
from secureafl.defenses.secureafl import Arrival, Judge, Pipeline, default


class SteadyLength(Judge):
    """Rejects an update more than twice as long as the longest that its sender had accepted so far."""

    name = "steady-length"

    def __init__(self) -> None:
        self._longest: defaultdict[int, float] = defaultdict(float)

    def judge(self, arrival: Arrival) -> str | None:
        if arrival.known and arrival.norm > 2.0 * self._longest[arrival.client]:
            return "longer-than-before"
        self._longest[arrival.client] = max(self._longest[arrival.client], arrival.norm)
        return None


DIM, NUM_CLIENTS = 30, 12
stages = default(DIM)
defense = Pipeline(replace(stages, judges=(*stages.judges, SteadyLength())))

machine = Machine(defense, np.zeros(DIM, np.float32), MachineSettings(server_lr=0.05))
clients = [machine.enrol(f"hospital-{k}") for k in range(NUM_CLIENTS)]
rng, reasons = np.random.default_rng(0), Counter[str]()
optimum = rng.normal(size=DIM)
for arrival in range(400):
    ticket = machine.issue(clients[int(rng.integers(NUM_CLIENTS))])
    gradient = machine.model_of(ticket).params - optimum + 0.3 * rng.normal(size=DIM)
    boost = (
        5.0 if arrival > 200 and ticket.client < 3 else 1.0
    )  # three clients begin to attack in the middle of the run
    reasons[str(machine.receive(ticket.number, (boost * gradient).astype(np.float32)).reason)] += 1

Console().print(f"distance to the optimum: {np.linalg.norm(machine.model.params - optimum):.2f}", highlight=False)
for reason, count in reasons.most_common():
    Console().print(f"{count:4} {reason}", highlight=False)
