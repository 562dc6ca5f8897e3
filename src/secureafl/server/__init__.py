"""The server: a deterministic machine over the log of arrivals, and what surrounds it."""

from secureafl.server.config import FederationSettings
from secureafl.server.federation import Assignment, Federation, Result, Status
from secureafl.server.machine import Machine, MachineSettings, Ticket
from secureafl.server.run import Run

__all__ = [
    "Assignment",
    "Federation",
    "FederationSettings",
    "Machine",
    "MachineSettings",
    "Result",
    "Run",
    "Status",
    "Ticket",
]
