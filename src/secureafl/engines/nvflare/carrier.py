"""NVFlare's sites as sessions see them: one blocking call per model, answered by a process that stays alive."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from nvflare.apis.signal import Signal
from nvflare.collab import CollabCallError

from secureafl.engines.nvflare.app_settings import NVFlareSettings
from secureafl.engines.nvflare.codec import Messages, reported
from secureafl.engines.nvflare.collab import Context, Proxy, set_call_context
from secureafl.engines.sessions import LostError, Report
from secureafl.server import Assignment
from secureafl.server.record.entries import Event
from secureafl.types import Reason
from secureafl.wire import CompressedUpdate, Reply


class Sites:
    """A carrier over Collab's client proxies; a client is known by its site's name.

    Who takes part in a job is settled when it starts. A site that was lost is asked now and then whether it is back.
    """

    def __init__(
        self,
        proxies: Sequence[Proxy],
        context: Context,
        messages: Messages,
        settings: NVFlareSettings,
        report: Report,
    ) -> None:
        self._proxies = {str(proxy.name): proxy for proxy in proxies}
        self._context = context
        self._messages = messages
        self._settings = settings
        self._report = report
        self._lost: set[str] = set()
        self._compressing: set[str] = set()  # whose last update came compressed: they can read such models, too
        self._lock = threading.Lock()
        # A job does not end while a call is open, and calls look at the job's signal only: give them one of our own.
        self._over = Signal()
        self._signals = {client: proxy.backend.abort_signal for client, proxy in self._proxies.items()}
        for proxy in self._proxies.values():
            proxy.backend.abort_signal = self._over

    def present(self) -> Collection[str]:
        with self._lock:
            lost = set(self._lost)
        for client in lost:
            if self._is_there(client):
                with self._lock:
                    self._lost.discard(client)
        with self._lock:
            return self._proxies.keys() - self._lost

    def send(self, assignment: Assignment) -> Proxy:
        return self._proxies[assignment.client]

    def fetch(self, handle: Proxy, assignment: Assignment) -> Reply:
        set_call_context(self._context)
        dispatch = self._messages.encode(assignment, compressed=assignment.client in self._compressing)
        self._compressing.discard(assignment.client)
        try:
            reply = handle(timeout=self._settings.ttl_seconds).reply(dispatch)
        except CollabCallError as error:
            if self._over.triggered:
                raise LostError(Event.EXPIRED, "the run is over") from error
            raise self._loss(assignment.client, error) from error
        found = self._messages.decode(reply, assignment)
        if isinstance(found, CompressedUpdate):
            self._compressing.add(assignment.client)
        if not isinstance(found, Reason) and (said := reported(reply)):
            self._report(assignment.client, said)
        return found

    def close(self) -> None:
        self._over.trigger(True)
        for client, proxy in self._proxies.items():
            proxy.backend.abort_signal = self._signals[client]

    def _loss(self, client: str, error: CollabCallError) -> LostError:
        """NVFlare says of a site that is gone what it says of one that is slow: only another call tells them apart."""
        reason = str(error.cause)
        if error.remote_traceback is not None:
            return LostError(Event.CLIENT_ERROR, reason)
        if isinstance(error.cause, TimeoutError) and self._is_there(client):
            return LostError(Event.EXPIRED, reason)
        with self._lock:
            self._lost.add(client)
        return LostError(Event.LEFT, reason)

    def _is_there(self, client: str) -> bool:
        set_call_context(self._context)
        try:
            self._proxies[client](timeout=self._settings.ping_seconds).ping()
        except CollabCallError:
            return False
        return True
