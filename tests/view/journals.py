"""Journals of any length and with any client names, written as a server writes them, without training anything."""

from __future__ import annotations

from pathlib import Path

from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.journal import Journal
from secureafl.server.record.sqlite import create_journal


def write_arrivals(
    path: Path,
    count: int,
    *,
    clients: tuple[str, ...] = ("a", "b", "c"),
    rate: float = 10.0,
    payload: bytes | None = None,
    defense: str = "secureafl",
    finished: bool = True,
) -> Path:
    """Arrivals of clients in turn, `rate` per second; every fourth is rejected. Returns the run's folder."""
    path.mkdir(parents=True, exist_ok=True)
    journal = create_journal(path / "run.db", {"defense": defense})
    append_arrivals(journal, count, clients=clients, rate=rate, payload=payload)
    if finished:
        journal.append(Entry(count / rate, count, "", Event.FINISHED))
    journal.close()
    return path


def append_arrivals(
    journal: Journal,
    count: int,
    *,
    first: int = 0,
    clients: tuple[str, ...] = ("a", "b", "c"),
    rate: float = 10.0,
    payload: bytes | None = None,
) -> None:
    """The same into an open journal, from version `first` on; durable at the end."""
    for version in range(first, first + count):
        client, accepted, seconds = clients[version % len(clients)], version % 4 != 3, version / rate
        evidence = {
            "norm": 1.0,
            "staleness": float(version % 5),
            "lipschitz_factor": 2.0 if accepted else 50.0,
            "threshold": 10.0,
        }
        reason = "accepted" if accepted else "changed-too-abruptly"
        journal.append(Entry(seconds, version, client, Event.ISSUED, ticket=version, base=version), durable=False)
        arrival = Entry(seconds, version, client, Event.ARRIVAL, reason, accepted, evidence, version, version, payload)
        journal.append(arrival, durable=False)
    journal.commit()
