"""The server: a deterministic machine over the log of arrivals, and what surrounds it."""

from secureafl.server.machine import Machine, MachineSettings, Ticket

__all__ = ["Machine", "MachineSettings", "Ticket"]
