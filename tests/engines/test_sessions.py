"""Sessions on time that passes only when a test lets it: a fake engine below the pool, a real federation above it."""

from __future__ import annotations

import math
import threading
import time as real_time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from secureafl import Layout, Machine, Reason, Vector, Verdict
from secureafl.defenses import AsyncSGD
from secureafl.engines import schedule, sessions
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.sessions import LostError, Pace, SessionPool
from secureafl.server import Assignment, Federation
from secureafl.server.record.entries import Entry, Event
from secureafl.wire import Reply

PATIENCE = 60.0
"""Real seconds in which whatever is due at one moment of fake time must be done."""
STEP = np.ones(2, np.float32)
EACH_SECOND = Pace(min_clients=1, num_workers=1, poll_seconds=1.0, max_poll_seconds=1.0)
LONG = 1_000.0


@dataclass(eq=False)
class Sleeper:
    """A thread in a wait."""

    until: float
    woken: threading.Event = field(default_factory=threading.Event)


class FakeClock:
    """A clock, and `threading` on it: waits end when they are notified or when `advance` comes to their end.

    Time moves from one such end to the next, and only while all threads made here are asleep. So what happens, and
    when, does not depend on the machine.
    """

    Lock = staticmethod(threading.Lock)

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self._now = 0.0
        self._num_awake = 0
        self._sleepers: set[Sleeper] = set()
        self._changed = threading.Condition()

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; returns once all that is due by then is done."""
        end = self._now + seconds
        while True:
            with self._changed:
                assert self._changed.wait_for(lambda: self._num_awake == 0, PATIENCE), f"no rest at {self._now} s"
                following = min((sleeper.until for sleeper in self._sleepers), default=math.inf)
                self._now = max(self._now, min(following, end))
                if following > end:
                    return
                for sleeper in [each for each in self._sleepers if each.until <= self._now]:
                    self.wake(sleeper)

    def sleep(self, seconds: float) -> None:
        self.Event().wait(seconds)

    def lie_down(self, timeout: float | None) -> Sleeper:
        sleeper = Sleeper(math.inf if timeout is None else self._now + timeout)
        with self._changed:
            self._sleepers.add(sleeper)
            self._num_awake -= 1
            self._changed.notify_all()
        return sleeper

    def wake(self, sleeper: Sleeper) -> bool:
        """Whether it was asleep. It counts as awake from now on, not from when its thread comes to run."""
        with self._changed:
            if sleeper not in self._sleepers:
                return False
            self._sleepers.remove(sleeper)
            self._num_awake += 1
        sleeper.woken.set()
        return True

    def Thread(self, *, target: Callable[[], None], daemon: bool) -> threading.Thread:  # noqa: N802
        def run() -> None:
            try:
                target()
            finally:
                with self._changed:
                    self._num_awake -= 1
                    self._changed.notify_all()

        with self._changed:
            self._num_awake += 1
        self.threads.append(threading.Thread(target=run, daemon=daemon))
        return self.threads[-1]

    def Condition(self) -> FakeCondition:  # noqa: N802
        return FakeCondition(self)

    def Event(self) -> FakeEvent:  # noqa: N802
        return FakeEvent(self)


class FakeCondition:
    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[Sleeper] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> None:
        sleeper = self._clock.lie_down(timeout)
        self._waiting.append(sleeper)
        self._lock.release()
        sleeper.woken.wait()
        self._lock.acquire()
        self._waiting.remove(sleeper)

    def notify(self, num: int = 1) -> None:
        for sleeper in self._waiting:
            if num > 0 and self._clock.wake(sleeper):
                num -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class FakeEvent:
    def __init__(self, clock: FakeClock) -> None:
        self._changed = FakeCondition(clock)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            if not self._is_set:
                self._changed.wait(timeout)
            return self._is_set


Client = Callable[[float], Vector | Reason | None]
"""What a client says when it is asked so many seconds after it got the model."""


def sends_after(seconds: float, update: Vector | Reason = STEP) -> Client:
    return lambda waited: update if waited >= seconds else None


def raises(kind: type[Exception], *args: object) -> Client:
    def client(waited: float) -> None:
        raise kind(*args)

    return client


def pending(waited: float) -> None:
    return None


prompt = sends_after(0.0)
failing = raises(LostError, Event.CLIENT_ERROR, "crashed")
leaving = raises(LostError, Event.LEFT, "gone")


class FakeCarrier:
    """An engine whose clients may be exchanged at any time. A handle is when the model was sent."""

    def __init__(self, clock: FakeClock, clients: Mapping[str, Client]) -> None:
        self.clients = dict(clients)
        self.sent: list[tuple[float, str]] = []
        self.asked: list[tuple[float, str]] = []
        self.looked: list[float] = []
        self.trouble: Exception | None = None  # in looking for clients
        self.unreachable: dict[str, Exception] = {}  # in sending to them
        self.stalls: dict[str, float] = {}  # seconds that a fetch takes
        self.closed = clock.Event()
        self._clock = clock

    def present(self) -> Collection[str]:
        self.looked.append(self._clock())
        if self.trouble is not None:
            raise self.trouble
        return list(self.clients)

    def send(self, assignment: Assignment) -> float:
        self.sent.append((self._clock(), assignment.client))
        if assignment.client in self.unreachable:
            raise self.unreachable[assignment.client]
        return self._clock()

    def fetch(self, handle: float, assignment: Assignment) -> Vector | Reason | None:
        self.asked.append((self._clock(), assignment.client))
        if assignment.client in self.stalls:
            self.closed.wait(self.stalls[assignment.client])
        return self.clients.get(assignment.client, leaving)(self._clock() - handle)

    def close(self) -> None:
        self.closed.set()


class PromptFederation(Federation):
    """Judges updates on the thread that delivers them, or later, when a test says so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.judges_at_once = True
        self._delivered: deque[tuple[Assignment, Reply, Future[Verdict]]] = deque()
        self._judging = threading.Lock()

    def deliver(self, assignment: Assignment, update: Reply) -> Future[Verdict]:
        done: Future[Verdict] = Future()
        self._delivered.append((assignment, update, done))
        if self.judges_at_once:
            self.judge()
        return done

    def judge(self) -> None:
        with self._judging:
            while self._delivered:
                self._take(*self._delivered.popleft())


class Stage:
    """A pool and all it needs, with what happened so far."""

    def __init__(self, clock: FakeClock, clients: Mapping[str, Client], pace: Pace, settings: EngineSettings) -> None:
        self.carrier = FakeCarrier(clock, clients)
        self.machine = Machine(AsyncSGD(2), np.zeros(2, np.float32), settings.machine())
        layout = Layout.of({"w": np.zeros(2, np.float32)})
        self.federation = PromptFederation(self.machine, layout, settings, clock=clock)
        self.advance = clock.advance
        self._clock = clock
        self._pace = pace
        self._settings = settings

    def begin(self) -> None:
        self.began = self._clock()
        self.pool = SessionPool(self.carrier, self.federation, self._settings, self._pace, clock=self._clock)
        self.advance(0.0)

    def rows(self, client: str | None = None) -> list[Entry]:
        return [row for row in self.federation.journal.entries() if client in (None, row.client)]

    def events(self, client: str) -> list[tuple[float, Event]]:
        return [(row.seconds, row.event) for row in self.rows(client)]

    def times(self, event: Event, client: str) -> list[float]:
        return [row.seconds for row in self.rows(client) if row.event is event]

    def issued(self) -> str:
        """Whose turn it was, in order, for clients of one letter."""
        return "".join(row.client for row in self.rows() if row.event is Event.ISSUED)

    def most_in_flight(self, without: str = "") -> int:
        """Most tickets that were open at one time."""
        rows = [row for row in self.rows() if row.ticket is not None and row.client != without]
        changes = [1 if row.event is Event.ISSUED else -1 for row in rows]
        return int(np.cumsum(changes).max())


Begin = Callable[..., Stage]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(sessions, "threading", made)
    monkeypatch.setattr(schedule, "threading", made)
    return made


@pytest.fixture
def prepare(clock: FakeClock) -> Iterator[Begin]:
    """Makes stages whose pool has not begun; in the end all are closed, and no thread may be left."""
    made: list[Stage] = []
    threads_before = set(threading.enumerate())

    def prepare(clients: Mapping[str, Client], pace: Pace = EACH_SECOND, **settings: Any) -> Stage:
        filled = EngineSettings(**{"defense": "asyncsgd", "discovery_seconds": 3.0, **settings})
        made.append(Stage(clock, clients, pace, filled))
        return made[-1]

    yield prepare
    for stage in made:
        stage.pool.close()
        stage.federation.close()
    assert set(threading.enumerate()) <= threads_before


@pytest.fixture
def begin(prepare: Begin) -> Begin:
    def begin(*args: Any, **settings: Any) -> Stage:
        stage = prepare(*args, **settings)
        stage.begin()
        return stage

    return begin


def pace(num_workers: int = 1, min_clients: int = 1, poll: float = 1.0, max_poll: float = 1.0) -> Pace:
    return Pace(min_clients=min_clients, num_workers=num_workers, poll_seconds=poll, max_poll_seconds=max_poll)


# joining


def test_nobody_gets_the_model_before_enough_clients_are_there(begin: Begin) -> None:
    stage = begin({"a": prompt, "b": prompt}, pace(min_clients=3))
    stage.advance(100.0)
    assert stage.rows() == []
    assert stage.carrier.sent == []
    stage.carrier.clients["c"] = prompt
    stage.advance(3.0)
    assert [stage.times(Event.JOINED, client) for client in "abc"] == [[102.0]] * 3  # clients are looked for every 3 s
    assert stage.carrier.sent[:3] == [(102.0, "a"), (102.0, "b"), (102.0, "c")]


@pytest.mark.parametrize("name", ["x" * 100_000, "", "\udc80"])
def test_a_name_that_does_not_fit_into_the_record_gets_no_work_and_one_row(name: str, begin: Begin) -> None:
    stage = begin({name: prompt, "a": prompt})
    stage.advance(10.0)
    assert {client for _, client in stage.carrier.sent} == {"a"}
    [row] = [row for row in stage.rows() if row.event is Event.ENGINE_TROUBLE]
    assert row.client == ""
    assert row.reason.startswith("a client's name")


def test_once_begun_a_late_comer_is_taken_in_however_few_are_left(begin: Begin) -> None:
    stage = begin({"a": prompt, "b": prompt}, pace(min_clients=2), retry_seconds=300.0)
    stage.advance(4.0)
    stage.carrier.clients.clear()
    stage.advance(4.0)
    stage.carrier.clients["c"] = prompt
    stage.advance(4.0)
    assert stage.events("c")[:3] == [(9.0, Event.JOINED), (9.0, Event.ISSUED), (10.0, Event.ARRIVAL)]


def test_a_client_is_welcomed_once_though_every_look_finds_it(begin: Begin) -> None:
    stage = begin({"a": prompt})
    stage.advance(30.0)
    assert stage.carrier.looked == [3.0 * k for k in range(11)]
    assert stage.times(Event.JOINED, "a") == [0.0]
    assert stage.times(Event.ARRIVAL, "a") == [1.0 * k for k in range(1, 31)]


def test_all_clients_of_one_look_are_welcomed_before_the_first_begins(
    begin: Begin, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Federation.note

    def note_slowly(federation: Federation, client: str, event: Event, reason: str = "") -> None:
        clock.sleep(10.0)  # long enough for ten turns of whoever has begun
        note(federation, client, event, reason)

    monkeypatch.setattr(PromptFederation, "note", note_slowly)
    stage = begin(dict.fromkeys("abcd", prompt), pace(num_workers=4))
    stage.advance(41.0)
    assert [(row.seconds, row.client, row.event) for row in stage.rows()[:4]] == [
        (10.0, "a", Event.JOINED),
        (20.0, "b", Event.JOINED),
        (30.0, "c", Event.JOINED),
        (40.0, "d", Event.JOINED),
    ]
    assert {(row.seconds, row.event) for row in stage.rows()[4:8]} == {(40.0, Event.ISSUED)}


def test_failing_looks_are_rows_and_neither_end_the_looking_nor_stop_the_clients(begin: Begin) -> None:
    stage = begin({"a": prompt})
    stage.carrier.trouble = ConnectionError("no link")
    stage.carrier.clients["b"] = prompt
    stage.advance(7.0)
    assert [(row.seconds, row.event, row.reason) for row in stage.rows("")] == [
        (3.0, Event.ENGINE_TROUBLE, "ConnectionError: no link"),
        (6.0, Event.ENGINE_TROUBLE, "ConnectionError: no link"),
    ]
    assert stage.times(Event.ARRIVAL, "a") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    stage.carrier.trouble = None
    stage.advance(2.0)
    assert stage.times(Event.JOINED, "b") == [9.0]


def test_failing_looks_at_the_start_count_nobody(prepare: Begin) -> None:
    stage = prepare({"a": prompt})
    stage.carrier.trouble = TimeoutError()
    stage.begin()
    stage.advance(4.0)
    stage.carrier.trouble = None
    stage.advance(3.0)
    assert stage.times(Event.ENGINE_TROUBLE, "") == [0.0, 3.0]
    assert stage.events("a")[:2] == [(6.0, Event.JOINED), (6.0, Event.ISSUED)]


# turns


@pytest.mark.parametrize("limit", [1, 3, 6, 7, 9])
def test_turns_go_round(begin: Begin, limit: int) -> None:
    stage = begin(dict.fromkeys("abcdefg", sends_after(2.0)), max_in_flight=limit)
    stage.advance(60.0)
    assert stage.most_in_flight() == min(limit, 7)
    assert stage.issued().startswith("abcdefg" * 4)
    assert len(stage.issued()) == min(limit, 7) * 31  # no place is ever empty: a turn takes 2 s


def test_no_more_than_max_in_flight_hold_the_model_whatever_becomes_of_it(begin: Begin) -> None:
    """Updates, garbage, failures, expiries, leaving and engine trouble, by several workers at once."""
    kinds = [
        prompt,
        sends_after(2.0),
        sends_after(1.0, Reason.MALFORMED),
        failing,
        pending,
        leaving,
        raises(OSError, "broken"),
    ]
    clients = {f"{letter}{number}": kind for letter, kind in zip("abcdefg", kinds, strict=True) for number in range(4)}
    stage = begin(
        clients,
        pace(num_workers=4),
        max_in_flight=5,
        ttl_seconds=4.0,
        max_retry_seconds=6.0,
        max_failures=3,
        max_refusals=None,
    )
    stage.advance(150.0)
    assert stage.most_in_flight() == 5
    assert len(stage.machine.open_tickets) == 5  # so no place got lost either
    assert {row.event for row in stage.rows()} == {
        Event.JOINED,
        Event.ISSUED,
        Event.ARRIVAL,
        Event.REFUSED,
        Event.CLIENT_ERROR,
        Event.EXPIRED,
        Event.LEFT,
        Event.RETURNED,
        Event.ENGINE_TROUBLE,
    }
    turns = Counter(row.client for row in stage.rows() if row.event is Event.ISSUED)
    assert min(turns[client] for client in clients) >= 5


def test_the_place_is_kept_until_the_update_was_judged(begin: Begin) -> None:
    stage = begin({"a": prompt, "b": prompt}, max_in_flight=1)
    stage.federation.judges_at_once = False
    stage.advance(100.0)
    assert stage.issued() == "a"
    stage.federation.judge()
    stage.advance(100.0)
    assert stage.issued() == "ab"
    stage.federation.judge()
    stage.advance(0.0)
    assert [(row.client, row.base) for row in stage.rows() if row.event is Event.ISSUED] == [
        ("a", 0),
        ("b", 1),
        ("a", 2),  # and it gets the model that its own update helped to make
    ]


def test_a_fetch_that_stalls_blocks_one_worker_and_no_other_client(begin: Begin) -> None:
    stage = begin({"a": prompt, "b": prompt, "c": prompt}, pace(num_workers=2))
    stage.carrier.stalls["a"] = 50.0
    stage.advance(60.0)
    assert stage.times(Event.ARRIVAL, "a") == [51.0]
    assert stage.times(Event.ARRIVAL, "b") == stage.times(Event.ARRIVAL, "c") == [1.0 * k for k in range(1, 61)]


def test_an_engine_whose_fetch_waits_is_asked_without_delay(prepare: Begin) -> None:
    stage = prepare({"a": prompt}, pace(poll=0.0, max_poll=0.0))
    stage.carrier.stalls["a"] = 5.0
    stage.begin()
    stage.advance(20.0)
    assert stage.carrier.sent == stage.carrier.asked == [(5.0 * k, "a") for k in range(5)]


def test_when_the_run_is_over_nobody_gets_the_model_again(begin: Begin) -> None:
    stage = begin({"a": prompt, "b": sends_after(5.0)})
    stage.advance(2.0)
    stage.federation.stop()
    stage.advance(LONG)
    assert stage.times(Event.ISSUED, "a") == [0.0, 1.0, 2.0]
    assert stage.times(Event.ISSUED, "b") == [0.0]


# waiting for an update


def test_a_client_is_asked_again_after_a_tenth_of_the_time_waited_within_bounds(begin: Begin) -> None:
    stage = begin({"a": pending}, pace(poll=2.0, max_poll=5.0), ttl_seconds=LONG)
    stage.advance(200.0)
    asked = [when for when, _ in stage.carrier.asked]
    assert asked[:12] == pytest.approx([2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24.2])  # 24.2 = 22 + a tenth of it
    assert asked[12:14] == pytest.approx([26.62, 29.282])
    assert np.diff(asked).tolist() == pytest.approx([min(max(2.0, 0.1 * waited), 5.0) for waited in asked[:-1]])
    assert asked[-1] - asked[-2] == pytest.approx(5.0)


def test_time_waited_counts_from_each_sending_anew(begin: Begin) -> None:
    stage = begin({"a": sends_after(30.0)}, pace(poll=2.0, max_poll=5.0))
    stage.advance(200.0)
    came = 29.282 * 1.1
    asked = [when for when, _ in stage.carrier.asked]
    assert stage.times(Event.ISSUED, "a")[:3] == pytest.approx([0.0, came, 2 * came])
    assert asked[14:17] == pytest.approx([came, came + 2.0, came + 4.0])


def test_an_update_that_does_not_come_in_time_expires_and_the_waits_double_up_to_a_limit(begin: Begin) -> None:
    stage = begin({"a": pending}, ttl_seconds=10.0, retry_seconds=5.0, max_retry_seconds=15.0)
    stage.advance(100.0)
    assert stage.events("a") == [
        (0.0, Event.JOINED),
        (0.0, Event.ISSUED),
        (11.0, Event.EXPIRED),  # asked each second: after 10 s it may still come
        (16.0, Event.ISSUED),  # after 5 s
        (27.0, Event.EXPIRED),
        (37.0, Event.ISSUED),  # after 10 s
        (48.0, Event.EXPIRED),
        (63.0, Event.ISSUED),  # after 15 s, not 20
        (74.0, Event.EXPIRED),
        (89.0, Event.ISSUED),
        (100.0, Event.EXPIRED),
    ]
    expired = [row for row in stage.rows("a") if row.event is Event.EXPIRED]
    assert [(row.ticket, row.reason) for row in expired] == [(k, "no update in 11 s") for k in range(5)]
    assert stage.machine.open_tickets == []


def test_an_update_at_the_last_moment_counts(begin: Begin) -> None:
    stage = begin({"a": sends_after(10.0)}, ttl_seconds=10.0)
    stage.advance(25.0)
    assert [event for _, event in stage.events("a")] == [Event.JOINED, *[Event.ISSUED, Event.ARRIVAL] * 2, Event.ISSUED]


# failing


def test_a_failing_client_is_tried_after_longer_and_longer_waits_which_an_update_ends(begin: Begin) -> None:
    stage = begin({"a": failing}, retry_seconds=2.0, max_retry_seconds=10.0)
    stage.advance(29.0)
    # each try takes a second: 0 | 1 + 2 | 4 + 4 | 9 + 8 | 18 + 10 | 29
    assert stage.times(Event.ISSUED, "a") == [0.0, 3.0, 8.0, 17.0, 28.0]
    assert stage.times(Event.CLIENT_ERROR, "a") == [1.0, 4.0, 9.0, 18.0, 29.0]
    stage.carrier.clients["a"] = prompt
    stage.advance(11.0)
    assert stage.times(Event.ARRIVAL, "a") == [40.0]
    stage.carrier.clients["a"] = failing
    stage.advance(10.0)
    # issued at once, at 40; fails at 41, and waits two seconds as the first time
    assert stage.times(Event.ISSUED, "a")[5:] == [39.0, 40.0, 43.0, 48.0]


def test_while_a_client_waits_to_be_tried_again_another_has_its_place(begin: Begin) -> None:
    stage = begin({"a": failing, "b": prompt, "c": prompt}, max_in_flight=1, retry_seconds=19.5)
    stage.advance(20.0)
    assert stage.issued() == "a" + "bc" * 10
    assert stage.times(Event.CLIENT_ERROR, "a") == [1.0]
    stage.carrier.clients["a"] = prompt
    stage.advance(10.0)
    # it is back at 20.5 while c has the place and b waits: it queues up behind b
    assert stage.issued()[20:] == "cba" * 3 + "cb"
    assert stage.most_in_flight() == 1


def test_many_clients_that_wait_to_be_tried_again_need_no_thread_each(begin: Begin, clock: FakeClock) -> None:
    stage = begin({f"client-{number}": failing for number in range(50)}, pace(num_workers=3), retry_seconds=60.0)
    stage.advance(30.0)
    assert stage.machine.open_tickets == []
    assert len(clock.threads) == 4  # three workers, and the one that looks for clients
    stage.advance(31.0)
    assert {len(stage.times(Event.ISSUED, f"client-{number}")) for number in range(50)} == {2}


@pytest.mark.parametrize("where", ["send", "fetch"])
def test_trouble_with_the_engine_gives_the_ticket_back_and_the_client_is_tried_again(begin: Begin, where: str) -> None:
    stage = begin({"b": prompt}, max_in_flight=1, retry_seconds=4.5)
    if where == "send":
        stage.carrier.unreachable["a"] = OSError("broken pipe")
    stage.carrier.clients["a"] = prompt if where == "send" else raises(OSError, "broken pipe")
    stage.advance(6.0)
    [row] = [row for row in stage.rows("a") if row.event is Event.ENGINE_TROUBLE]
    [ticket] = [row.ticket for row in stage.rows("a") if row.event is Event.ISSUED]
    assert row.ticket == ticket
    assert row.reason == "OSError: broken pipe"
    stage.carrier.clients["a"] = prompt
    stage.carrier.unreachable.clear()
    stage.advance(6.0)
    again = stage.times(Event.ISSUED, "a")[1]
    assert row.seconds + 4.5 <= again <= row.seconds + 5.5  # as soon as it is its turn
    assert stage.times(Event.ARRIVAL, "a")[0] == again + 1.0
    assert stage.times(Event.ARRIVAL, "b")[-1] >= 11.0  # whoever shares the engine goes on
    assert stage.most_in_flight() == 1


def test_trouble_in_a_row_doubles_the_wait_too(begin: Begin) -> None:
    stage = begin({"a": raises(OSError)}, retry_seconds=2.0, max_retry_seconds=10.0)
    stage.advance(29.0)
    assert stage.times(Event.ISSUED, "a") == [0.0, 3.0, 8.0, 17.0, 28.0]


def test_trouble_before_there_is_a_ticket_is_a_row_and_the_client_is_tried_again(
    prepare: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = [MemoryError("no room"), MemoryError("no room")]
    assign = Federation.assign

    def assign_late(federation: Federation, client: str) -> Assignment | None:
        if troubles:
            raise troubles.pop()
        return assign(federation, client)

    monkeypatch.setattr(PromptFederation, "assign", assign_late)
    stage = prepare({"a": prompt}, max_in_flight=1, retry_seconds=5.0)
    stage.begin()
    stage.advance(11.0)
    assert stage.events("a") == [
        (0.0, Event.JOINED),
        (0.0, Event.ENGINE_TROUBLE),
        (5.0, Event.ENGINE_TROUBLE),
        (10.0, Event.ISSUED),
        (11.0, Event.ARRIVAL),
        (11.0, Event.ISSUED),
    ]
    assert {row.reason for row in stage.rows("a") if row.event is Event.ENGINE_TROUBLE} == {"MemoryError: no room"}


# leaving


def test_who_left_is_not_taken_in_again_before_its_wait_is_over(begin: Begin) -> None:
    stage = begin({"a": leaving}, retry_seconds=10.0, max_retry_seconds=30.0)
    stage.advance(16.0)
    stage.carrier.clients["a"] = prompt
    stage.advance(34.0)
    assert stage.events("a")[:8] == [
        (0.0, Event.JOINED),
        (0.0, Event.ISSUED),
        (1.0, Event.LEFT),  # not before 11
        (12.0, Event.RETURNED),
        (12.0, Event.ISSUED),
        (13.0, Event.LEFT),  # the second time in a row: not before 33
        (33.0, Event.RETURNED),
        (33.0, Event.ISSUED),
    ]
    left = [row for row in stage.rows("a") if row.event is Event.LEFT]
    assert [(row.ticket, row.reason) for row in left] == [(0, "gone"), (1, "gone")]
    assert stage.times(Event.ARRIVAL, "a") == [1.0 * k for k in range(34, 51)]


def test_who_sent_an_update_in_between_and_leaves_again_waits_no_longer_than_the_first_time(begin: Begin) -> None:
    stage = begin({"a": leaving}, retry_seconds=10.0)
    stage.advance(11.5)
    stage.carrier.clients["a"] = prompt
    stage.advance(3.0)
    stage.carrier.clients["a"] = leaving
    stage.advance(13.0)
    assert stage.times(Event.LEFT, "a") == [1.0, 15.0]
    assert stage.times(Event.RETURNED, "a") == [12.0, 27.0]


def test_who_comes_back_later_is_taken_in_by_the_next_look(begin: Begin) -> None:
    stage = begin({"a": prompt, "b": prompt}, retry_seconds=2.0)
    stage.advance(4.5)
    del stage.carrier.clients["a"]
    stage.advance(100.0)
    assert stage.times(Event.LEFT, "a") == [5.0]
    assert stage.times(Event.RETURNED, "a") == []
    stage.carrier.clients["a"] = prompt
    stage.advance(1.0)
    assert stage.events("a")[-2:] == [(105.0, Event.RETURNED), (105.0, Event.ISSUED)]


def test_who_cannot_be_reached_leaves_its_place_to_others(begin: Begin) -> None:
    stage = begin({"b": prompt}, max_in_flight=1, retry_seconds=300.0)
    stage.carrier.unreachable["a"] = LostError(Event.LEFT, "unknown node")
    stage.carrier.clients["a"] = prompt
    stage.advance(20.0)
    assert [event for _, event in stage.events("a")] == [Event.JOINED, Event.ISSUED, Event.LEFT]
    assert stage.times(Event.ARRIVAL, "b") == [1.0 * k for k in range(1, 21)]


def test_failures_in_a_row_set_a_client_aside_until_it_is_due_for_another_try(begin: Begin) -> None:
    stage = begin({"a": failing, "b": prompt}, max_in_flight=1, max_failures=3, retry_seconds=1.0)
    stage.advance(12.0)
    a, places = stage.events("a"), [row.seconds for row in stage.rows("b") if row.event is Event.ARRIVAL]
    assert [event for _, event in a] == [
        Event.JOINED,
        *[Event.ISSUED, Event.CLIENT_ERROR] * 3,
        Event.LEFT,
    ]
    [left] = [row for row in stage.rows("a") if row.event is Event.LEFT]
    assert (left.reason, left.ticket) == ("3 failures in a row", None)
    assert len(places) == 9  # of twelve seconds, three tries of the other took one each
    stage.advance(30.0)
    [returned, *_] = stage.times(Event.RETURNED, "a")
    assert left.seconds + 8.0 <= returned < left.seconds + 8.0 + 3.0  # the wait of a fourth failure
    later = [event for when, event in stage.events("a") if when >= returned]
    assert later[:4] == [Event.RETURNED, Event.ISSUED, Event.CLIENT_ERROR, Event.LEFT]  # one more is enough


def test_an_update_begins_the_count_of_failures_anew(begin: Begin) -> None:
    stage = begin({"a": failing}, max_failures=3, retry_seconds=1.0)
    stage.advance(3.5)
    assert len(stage.times(Event.CLIENT_ERROR, "a")) == 2
    stage.carrier.clients["a"] = prompt
    stage.advance(3.0)
    assert stage.times(Event.ARRIVAL, "a") == [6.0]
    stage.carrier.clients["a"] = failing
    stage.advance(3.5)
    assert len(stage.times(Event.CLIENT_ERROR, "a")) == 4
    assert stage.times(Event.LEFT, "a") == []


# quarantine


def test_a_quarantined_client_gets_no_more_work_and_leaves_its_place_to_others(begin: Begin) -> None:
    clients = {"a": sends_after(0.0, Reason.MALFORMED), "b": prompt}
    stage = begin(clients, max_in_flight=1, max_refusals=2)
    stage.advance(20.0)
    assert [event for _, event in stage.events("a")] == [
        Event.JOINED,
        *[Event.ISSUED, Event.REFUSED] * 2,
        Event.QUARANTINED,
    ]
    assert stage.issued() == "abab" + "b" * 17


def test_who_was_quarantined_before_is_not_even_welcomed(prepare: Begin) -> None:
    stage = prepare({"a": prompt, "b": prompt}, max_refusals=1)
    assignment = stage.federation.assign("a")
    assert assignment is not None
    stage.federation.deliver(assignment, Reason.MALFORMED)
    stage.begin()
    stage.advance(20.0)
    assert stage.times(Event.JOINED, "a") == []
    assert stage.times(Event.JOINED, "b") == [0.0]
    assert {client for _, client in stage.carrier.sent} == {"b"}


def test_the_run_ends_when_everyone_is_quarantined(begin: Begin) -> None:
    garbage = sends_after(0.0, Reason.NOT_FINITE)
    stage = begin({"a": garbage, "b": garbage}, max_refusals=2, discovery_seconds=5.0)
    stage.advance(20.0)
    assert stage.federation.stopped
    [row] = [row for row in stage.federation.journal.entries() if row.event is Event.NO_CLIENTS]
    assert "all 2 are quarantined" in row.reason


def test_the_run_goes_on_while_one_client_is_left(begin: Begin) -> None:
    stage = begin({"a": sends_after(0.0, Reason.NOT_FINITE), "b": prompt}, max_refusals=2, discovery_seconds=5.0)
    stage.advance(20.0)
    assert not stage.federation.stopped


# clients that stall


def test_clients_that_never_answer_give_their_places_back(begin: Begin) -> None:
    clients = {"a": pending, "b": pending, "c": prompt, "d": prompt}
    stage = begin(clients, max_in_flight=2, stall_seconds=10.0)
    stage.advance(9.0)
    assert set(stage.issued()) == {"a", "b"}, "until then the limit holds"
    stage.advance(11.0)
    assert stage.issued().count("c") > 3


def test_before_the_first_update_only_as_many_as_have_a_place_count_as_stalled(begin: Begin) -> None:
    stage = begin(dict.fromkeys("abcdefgh", pending), max_in_flight=2, stall_seconds=5.0)
    stage.advance(300.0)
    assert stage.most_in_flight() == 4


def test_a_stalled_client_s_update_still_counts_and_it_takes_no_second_place(begin: Begin) -> None:
    clients = {"a": sends_after(20.0), "b": sends_after(1.0), "c": sends_after(1.0)}
    stage = begin(clients, max_in_flight=1, stall_seconds=5.0)
    stage.advance(60.0)
    assert any(event is Event.ARRIVAL for _, event in stage.events("a"))
    assert stage.most_in_flight(without="a") == 1


# holding updates back


def delays(begin: Begin, clients: str, **settings: Any) -> dict[str, list[float]]:
    """How long after it was asked for each of a client's first updates was handed in."""
    stage = begin(dict.fromkeys(clients, prompt), hold_seconds=60.0, discovery_seconds=500.0, **settings)
    stage.advance(2_000.0)
    stage.pool.close()
    asked = {client: [when - stage.began for when, name in stage.carrier.asked if name == client] for client in clients}
    assert all(len(asked[client]) >= 4 for client in clients)
    return {
        client: np.subtract(stage.times(Event.ARRIVAL, client)[:3], asked[client][:3]).tolist() for client in clients
    }


def test_updates_are_held_back_for_times_that_follow_from_the_seed_and_the_client(begin: Begin) -> None:
    first = delays(begin, "abc")
    assert all(delay > 0.0 for client in first for delay in first[client])
    assert len({round(delay, 6) for client in first for delay in first[client]}) == 9  # no two alike
    assert delays(begin, "abc")["a"] == pytest.approx(first["a"])
    assert delays(begin, "bcxyz")["c"] == pytest.approx(first["c"])  # whoever else is there
    assert delays(begin, "c", max_in_flight=1)["c"] == pytest.approx(first["c"])
    assert delays(begin, "abc", hold_seed=1)["a"] != pytest.approx(first["a"])


def test_an_update_held_back_keeps_its_place_and_is_not_asked_for_again(begin: Begin) -> None:
    stage = begin({"a": prompt, "b": prompt}, max_in_flight=1, hold_seconds=60.0, ttl_seconds=5.0)
    stage.advance(2_000.0)
    rows = [row for row in stage.rows() if row.ticket is not None]
    assert [row.event for row in rows[:20]] == [Event.ISSUED, Event.ARRIVAL] * 10  # nor does it expire
    assert stage.issued()[:10] == "ababababab"
    issued = [row.seconds for row in stage.rows() if row.event is Event.ISSUED]
    assert [when for when, _ in stage.carrier.asked[:10]] == pytest.approx([when + 1.0 for when in issued[:10]])


# the end


def test_after_closing_nothing_is_asked_sent_or_written_and_no_thread_is_left(begin: Begin, clock: FakeClock) -> None:
    """Whatever a session waits for: an update, the end of a hold, another try, a place, more clients."""
    waiting = [
        begin({"a": pending}, pace(num_workers=3)),
        begin({"a": prompt}, hold_seconds=1e9),
        begin({"a": failing}, pace(num_workers=2), retry_seconds=50.0),
        begin({"a": pending, "b": prompt}, max_in_flight=1),
        begin({"a": leaving}, retry_seconds=50.0),
        begin({"a": prompt}, pace(min_clients=2)),
    ]
    clock.advance(10.5)
    for stage in waiting:
        stage.pool.close()
    assert not any(thread.is_alive() for thread in clock.threads)
    assert all(stage.carrier.closed.is_set() for stage in waiting)
    before = [
        (stage.rows(), stage.carrier.sent[:], stage.carrier.asked[:], stage.carrier.looked[:]) for stage in waiting
    ]
    clock.advance(LONG)
    assert before == [
        (stage.rows(), stage.carrier.sent, stage.carrier.asked, stage.carrier.looked) for stage in waiting
    ]


@pytest.mark.parametrize("error", [LostError(Event.LEFT, "closing"), OSError("closed")])
def test_a_fetch_that_closing_cuts_off_is_nobodys_failure(begin: Begin, error: Exception) -> None:
    def blocking(waited: float) -> Vector | None:
        if stage.carrier.closed.wait():
            raise error
        return None

    stage = begin({"a": blocking, "b": blocking}, pace(num_workers=2))
    stage.advance(100.0)
    assert [client for _, client in sorted(stage.carrier.asked)] == ["a", "b"]
    stage.pool.close()
    assert {row.event for row in stage.rows()} == {Event.JOINED, Event.ISSUED}


def test_an_update_judged_after_closing_leads_to_no_further_dispatch(begin: Begin) -> None:
    stage = begin({"a": prompt, "b": prompt}, max_in_flight=1)
    stage.federation.judges_at_once = False
    stage.advance(5.0)
    stage.pool.close()
    stage.federation.judge()
    stage.advance(5.0)
    assert stage.carrier.sent == [(0.0, "a")]


def test_after_a_thousand_failures_in_a_row_a_client_is_still_tried_again(begin: Begin) -> None:
    stage = begin({"a": failing}, discovery_seconds=LONG, retry_seconds=1.0, max_retry_seconds=1.0)
    stage.advance(2_100.0)  # a try and a wait take two seconds
    assert len(stage.times(Event.CLIENT_ERROR, "a")) == 1_050


def test_a_look_while_a_client_is_leaving_does_not_take_it_in_at_once(
    prepare: Begin, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = prepare({"a": leaving}, retry_seconds=100.0, discovery_seconds=1.0)
    parting, present = threading.Event(), stage.carrier.present
    part = SessionPool._part

    def part_slowly(pool: SessionPool[float], session: sessions.Session[float]) -> None:
        def slow_clock() -> float:
            pool._clock = clock
            parting.set()
            real_time.sleep(0.2)  # its thread loses the processor here
            return clock()

        pool._clock = slow_clock
        part(pool, session)

    def look() -> Collection[str]:
        if clock() == 1.0:
            parting.wait(5.0)
        return present()

    monkeypatch.setattr(SessionPool, "_part", part_slowly)
    monkeypatch.setattr(stage.carrier, "present", look)
    stage.begin()
    stage.advance(50.0)
    assert stage.times(Event.RETURNED, "a") == []
