"""A simulated federation on record: the same journal as a deployed one keeps, for audit, replay and eject."""

from __future__ import annotations

from pathlib import Path

from secureafl.lab.cells.cell import CellSettings
from secureafl.server import FederationSettings, Machine
from secureafl.server.machine import Ticket
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Run
from secureafl.types import ClientId, Model, Vector, Verdict


class Recorder:
    """Stands between a simulation and its machine, and writes down what it passes on."""

    def __init__(self, machine: Machine, settings: CellSettings, run_dir: Path) -> None:
        self._machine = machine
        federation = FederationSettings(
            run_dir=run_dir,
            defense=settings.defense,
            defense_settings=settings.complete()["defense_settings"],
            client_returns="gradient",
            server_lr=settings.server_lr,
            max_staleness=machine.settings.max_staleness,
            average_over=machine.settings.average_over,
        )
        facts = {**federation.facts(), "seed": settings.seed}
        self._run = Run(machine, federation, facts=facts)

    @property
    def model(self) -> Model:
        return self._machine.model

    def ticket(self, number: int) -> Ticket | None:
        return self._machine.ticket(number)

    def issue(self, client: ClientId, version: int | None = None) -> Ticket:
        return self._run.issue(self._machine.name_of(client), version)

    def withdraw(self, number: int) -> None:
        self._run.withdraw(number, Event.LEFT, "dropped out")

    def receive(self, number: int, delta: Vector) -> Verdict:
        return self._run.receive(number, delta)

    def close(self) -> None:
        """The simulation is over: leave a last snapshot and let go of the files."""
        self._run.finish()
        self._run.close()
