"""`secureafl standby`: follows a run in a database, says how far it is, and starts the next server when the lease ends.

The server is whatever command the operator gives: Flower's, NVFlare's, or a program of their own, with `resume` set. It
takes the lease itself, so that at most one of several leads, whoever started it. One standby at a time starts one.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from secureafl.errors import SettingsError, UnreachableError
from secureafl.files import this_process
from secureafl.server.machine import Machine
from secureafl.server.record.address import RunUrl
from secureafl.server.record.postgres import PostgresStore
from secureafl.server.record.store import StandbyReport
from secureafl.server.record.succession import Leader, News
from secureafl.server.review.opened import RecordedRun
from secureafl.server.standby.follower import Lag, Standby

POLL_SECONDS = 0.5  # between two looks at the lease
REPORT_SECONDS = 1.0
GATHER_SECONDS = 0.05  # after a notice: rows that come close together are read together
BATCH = 200  # rows between two looks
CHILD_SECONDS = 10.0  # how long a server may take to end
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0  # after a server that did not start


class StandbyService:
    """One standby, until the run is finished or `stop` is called."""

    def __init__(
        self,
        url: RunUrl,
        command: Sequence[str] = (),
        *,
        start_seconds: float = 120.0,
        say: Callable[[str], None],
    ) -> None:
        """Without a command, it follows and checks, and starts nothing. A server that does not lead after
        `start_seconds` is taken for one that failed.
        """
        self._url = url
        self._store = PostgresStore(url)
        self._command = list(command)
        self._start_seconds = start_seconds
        self._say = say
        self._stopped = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._standby: Standby | None = None
        self._reported_at = float("-inf")
        self._pause, self._not_before = FIRST_PAUSE, float("-inf")
        self.num_takeovers = 0

    def stop(self) -> None:
        """End it soon. Safe in a signal handler."""
        self._stopped.set()

    @property
    def lag(self) -> Lag | None:
        """How far behind it is; None before it has found the run."""
        return None if self._standby is None else self._standby.lag()

    @property
    def num_rows(self) -> int:
        """Rows repeated so far."""
        return 0 if self._standby is None else self._standby.num_rows

    @property
    def version(self) -> int | None:
        """Of its model; None if it repeats nothing."""
        machine = None if self._standby is None else self._standby.machine
        return None if machine is None else machine.model.version

    def run(self) -> None:
        """Follow until the run is finished. `StoreError` says what in the log is not as it was written."""
        news = self._store.succession.news()
        try:
            while not self._stopped.is_set():
                with self._patiently():
                    if self._standby is None and not self._find():
                        self._stopped.wait(POLL_SECONDS)
                    elif self._follow(news):
                        return
        finally:
            news.close()
            self._end()

    def _end(self) -> None:
        if self._standby is not None:
            self._standby.close()
            with contextlib.suppress(UnreachableError):
                self._store.succession.forget(this_process())
        self._end_child()

    def _end_child(self) -> None:
        if self._child is None or self._child.poll() is not None:
            return
        self._child.terminate()
        try:
            self._child.wait(CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    @contextlib.contextmanager
    def _patiently(self) -> Iterator[None]:
        """Wait for a database, or objects, that cannot be reached."""
        try:
            yield
        except UnreachableError as error:
            self._say(f"{error}; waiting for it")
            while not self._stopped.wait(POLL_SECONDS):
                with contextlib.suppress(UnreachableError):
                    self._store.reach()
                    self._say(f"{self._url} can be reached again")
                    return

    def _find(self) -> bool:
        """Whether there is a run to follow; a standby may be started before its first server."""
        if not self._store.has_run():
            return False
        self._standby = Standby(self._store, self._machine_of_run())
        self._say(f"following {self._url} from row {self._standby.head.number}")
        return True

    def _machine_of_run(self) -> Callable[[], Machine] | None:
        with RecordedRun.open(self._url) as recorded:
            try:
                recorded.machine()
            except SettingsError as error:  # trusted data, or a defense of the user's own that is not here
                self._say(f"rows are checked and not repeated: {error}")
                return None
            except KeyError as error:  # a `Run` of the user's own
                self._say(f"rows are checked and not repeated: the run's facts do not state {error}")
                return None
            return recorded.machine

    def _follow(self, news: News) -> bool:
        """Follow for a while; whether the run is finished."""
        assert self._standby is not None
        looked = time.monotonic()
        while not self._stopped.is_set() and time.monotonic() < looked + POLL_SECONDS:
            if not self._standby.follow(BATCH):
                news.wait(POLL_SECONDS)
                self._stopped.wait(GATHER_SECONDS)
        self._report(self._standby)
        leader = self._store.succession.leader()
        if leader.leads:
            self._pause = FIRST_PAUSE
            return False
        self._standby.follow()
        if self._standby.finished:
            self._say(f"{self._url} is finished")
            return True
        if self._command and time.monotonic() >= self._not_before:
            self._succeed(leader)
        return False

    def _report(self, standby: Standby) -> None:
        if time.monotonic() < self._reported_at + REPORT_SECONDS:
            return
        self._reported_at = time.monotonic()
        lag = standby.lag()
        said = StandbyReport(this_process(), standby.head.number, lag.rows, lag.seconds, bool(self._command))
        self._store.succession.report(said)

    def _succeed(self, before: Leader) -> None:
        """Start the next server, unless another standby is about to."""
        with self._store.succession.turn() as mine:
            if not mine or self._store.succession.leader().leads:
                return
            self._say(f"the lease of {before.name} has ended: starting {shlex.join(self._command)}")
            failure = self._start(before)
        if failure is None:
            self.num_takeovers += 1
            return
        self._say(f"{failure}; trying again in {self._pause:g} s")
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2.0 * self._pause, LONGEST_PAUSE)

    def _start(self, before: Leader) -> str | None:
        """Start the server, and wait until it leads; why it does not."""
        self._end_child()  # one that lost the lease, and has not noticed yet
        try:
            self._child = subprocess.Popen(self._command)
        except OSError as error:
            raise SettingsError(f"cannot start {self._command[0]}: {error.strerror}") from None
        ends = time.monotonic() + self._start_seconds
        while not self._stopped.is_set():
            leader = self._store.succession.leader()
            if leader.epoch > before.epoch:
                self._say(f"{leader.name} leads (epoch {leader.epoch})")
                return None
            if self._child.poll():
                return f"{self._command[0]} ended with exit code {self._child.returncode}"
            if time.monotonic() > ends:
                return f"no server took the lease in {self._start_seconds:g} s"
            self._stopped.wait(POLL_SECONDS / 4)
        return "stopped"

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """SIGTERM or SIGINT ends it in order."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop()

        numbers = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
