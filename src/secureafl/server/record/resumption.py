"""An operator's wish that a run be resumed, kept with the run itself.

An engine may have no way to hand a new setting to an app: Flower refuses keys that the app's own file does not list. So
the wish is a file of the run. The next server on it resumes the run, and removes the file.
"""

from __future__ import annotations

from secureafl.errors import StoreError
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.entries import Event
from secureafl.server.record.store import Store

WISH = "resume"


def ask_to_resume(place: Place) -> int:
    """Have the next server on this run resume it; returns the model's version that it goes on from."""
    store = store_of(place)
    store.require_run()
    hold = store.hold()
    try:
        journal = store.read()
        try:
            journal.check()
            last = journal.entry(journal.last_number())
            version = 0 if last is None else last.version + (last.event is Event.ARRIVAL)
        finally:
            journal.close()
        store.files.write(WISH, [b"by the next server\n"])
    except OSError as error:
        raise StoreError(f"cannot write {store.files.where(WISH)}: {error.strerror}") from None
    finally:
        hold.release()
    return version


def is_asked_to_resume(store: Store | None) -> bool:
    """Whether an operator wished so."""
    return store is not None and store.has_run() and bool(store.files.names(WISH))


def resumed(store: Store) -> None:
    """The wish came true. For the server that holds the run."""
    try:
        if store.files.names(WISH):
            store.files.remove(WISH)
    except OSError as error:
        raise StoreError(f"cannot remove {store.files.where(WISH)}: {error.strerror}") from None
