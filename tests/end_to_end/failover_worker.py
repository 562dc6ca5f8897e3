"""A server that leads a run under load, or follows it and takes over; made to be killed, stopped and cut off."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.end_to_end.crash_worker import FACTS, PROBLEM, advance, machine

from secureafl.errors import StoreError, UnreachableError
from secureafl.server import Standby
from secureafl.server.record.address import parse_place, store_of
from secureafl.server.record.lease import Lease
from secureafl.server.record.run import Run, StoreSettings, model_hash

__all__ = ["PROBLEM", "serve", "undisturbed"]


def undisturbed(num_arrivals: int) -> dict[int, str]:
    """The model's hash after each of so many arrivals, in memory, with nothing in between."""
    run, found = Run(machine()), {}
    for version in range(num_arrivals):
        advance(run)
        found[version] = model_hash(run.machine.model.params).hex()
    run.close()
    return found


def serve(url: str, lease_seconds: float, log: str, stop: str, patience: float = 0.0) -> None:
    """Lead, or follow and then lead, until the file `stop` is there. What was acknowledged is written to `log`."""
    with Path(log).open("ab", buffering=0) as file:
        try:
            _serve(url, lease_seconds, file.fileno(), Path(stop), patience)
        except StoreError as error:
            os.write(file.fileno(), f"end {error}\n".encode())


def _serve(url: str, lease_seconds: float, log: int, stop: Path, patience: float) -> None:
    place = parse_place(url)
    settings = StoreSettings(run_dir=place, snapshot_every=50, lease_seconds=lease_seconds, database_patience=patience)
    run = _take_over(settings, log, stop) if store_of(place).has_run() else Run(machine(), settings, facts=FACTS)
    if run is None:
        return
    assert isinstance(run._hold, Lease)
    os.write(log, f"leads {run._hold.epoch}\n".encode())
    while not stop.exists():
        run.require_hold()
        advance(run)
        model = run.machine.model
        said = f"ack {model.version - 1} {run._hold.epoch} {model_hash(model.params).hex()} {time.monotonic()}\n"
        os.write(log, said.encode())
        time.sleep(0.002)
    run.close()


def _take_over(settings: StoreSettings, log: int, stop: Path) -> Run | None:
    """Follow until nobody leads; of several, one gets the lease."""
    store = settings.store()
    assert store is not None
    standby = Standby(store, machine)
    os.write(log, b"follows\n")
    looked = 0.0
    while not stop.exists():
        try:
            followed = standby.follow()
            if time.monotonic() > looked + 0.25:
                looked = time.monotonic()
                if not store.is_held():
                    return standby.take_over(settings, facts=FACTS)
            if not followed:
                time.sleep(0.1)
        except UnreachableError:
            time.sleep(0.1)
        except StoreError as error:
            if "is in use by" not in str(error):
                raise
            os.write(log, b"follows\n")
            standby = Standby(store, machine)
    standby.close()
    return None
