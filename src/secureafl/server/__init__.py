"""The server: a deterministic machine over the log of arrivals, and what surrounds it."""

from secureafl.server.federation_settings import FederationSettings
from secureafl.server.live.federation import Assignment, Federation, Result, Status
from secureafl.server.machine import Machine, MachineSettings, Ticket
from secureafl.server.record.address import RunUrl
from secureafl.server.record.run import Run
from secureafl.server.standby.follower import Lag, Standby

__all__ = [
    "Assignment",
    "Federation",
    "FederationSettings",
    "Lag",
    "Machine",
    "MachineSettings",
    "Result",
    "Run",
    "RunUrl",
    "Standby",
    "Status",
    "Ticket",
]
