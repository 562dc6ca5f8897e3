from collections import Counter

import numpy as np
import pytest

from secureafl import Machine, MachineSettings, build_defense
from secureafl.errors import SettingsError
from secureafl.lab.simulation.protocols import (
    ArrivalProtocol,
    Haste,
    PaperProtocol,
    VirtualTimeProtocol,
    VirtualTimeSettings,
)
from secureafl.types import ClientId

Rows = list[tuple[int, int]]
DELTA = np.ones(3, np.float32)


def machine_for(protocol: ArrivalProtocol, num_clients: int, defense: str = "asyncsgd") -> Machine:
    settings = MachineSettings(server_lr=0.1, keep_recent=protocol.keep_recent)
    machine = Machine(build_defense(defense, 3), np.zeros(3, np.float32), settings)
    for client in range(num_clients):
        machine.enrol(f"client-{client}")
    return machine


def arrivals(protocol: ArrivalProtocol, machine: Machine, count: int) -> Rows:
    rows = []
    for _ in range(count):
        ticket = protocol.next(machine)
        rows.append((int(ticket.client), machine.model.version - ticket.version))
        machine.receive(ticket.number, DELTA)
    return rows


def virtual(num_clients: int = 5, seed: int = 0, **settings: object) -> VirtualTimeProtocol:
    return VirtualTimeProtocol(num_clients, VirtualTimeSettings(**settings), seed)  # type: ignore[arg-type]


def test_paper_protocol_draws_clients_and_delays_uniformly() -> None:
    protocol = PaperProtocol(num_clients=4, max_delay=2, seed=0)
    rows = arrivals(protocol, machine_for(protocol, 4), 3000)
    clients, delays = Counter(client for client, _ in rows), Counter(delay for _, delay in rows[2:])
    assert all(abs(clients[k] - 750) < 4 * np.sqrt(3000 * 0.25 * 0.75) for k in range(4))
    assert sorted(delays) == [0, 1, 2]
    assert all(abs(delays[k] - 1000) < 4 * np.sqrt(3000 * 2 / 9) for k in range(3))


def test_paper_protocol_never_looks_before_the_first_version() -> None:
    protocol = PaperProtocol(num_clients=4, max_delay=10, seed=1)
    assert all(delay <= place for place, (_, delay) in enumerate(arrivals(protocol, machine_for(protocol, 4), 30)))


@pytest.mark.parametrize("make", [lambda seed: PaperProtocol(5, 3, seed), lambda seed: virtual(5, seed)])
def test_arrivals_depend_on_the_seed_and_not_on_the_defense(make: object) -> None:
    assert callable(make)
    runs = {}
    for seed, defense in ((0, "asyncsgd"), (0, "secureafl"), (1, "asyncsgd")):
        protocol = make(seed)
        runs[seed, defense] = arrivals(protocol, machine_for(protocol, 5, defense), 60)
    assert runs[0, "asyncsgd"] == runs[0, "secureafl"]
    assert runs[0, "asyncsgd"] != runs[1, "asyncsgd"]


def test_equal_clients_answer_in_turn() -> None:
    protocol = virtual(3, speed="constant", jitter=0.0)
    rows = arrivals(protocol, machine_for(protocol, 3), 6)
    assert [client for client, _ in rows] == [0, 1, 2, 0, 1, 2]
    assert [delay for _, delay in rows] == [
        0,
        1,
        2,
        2,
        2,
        2,
    ]  # all start at version 0, later each misses the two others
    assert protocol.now == pytest.approx(2.0)


def test_stragglers_answer_more_rarely_and_for_older_models() -> None:
    protocol = virtual(5, speed="constant", jitter=0.0, straggler_fraction=0.2, straggler_factor=4.0)
    [slow] = [client for client, duration in enumerate(protocol.durations) if duration == 4.0]
    rows = arrivals(protocol, machine_for(protocol, 5), 170)
    count = sum(client == slow for client, _ in rows)
    assert count == pytest.approx(170 / 17, abs=1)  # the others answer 16 times while it answers once
    assert max(delay for client, delay in rows if client == slow) >= 16
    assert max(delay for client, delay in rows if client != slow) <= 5


def test_dropouts_leave_no_ticket_behind_and_return() -> None:
    protocol = virtual(4, dropout_rate=0.5, dropout_absence=1.0)
    machine = machine_for(protocol, 4)
    rows = arrivals(protocol, machine, 300)
    assert {client for client, _ in rows} == {0, 1, 2, 3}
    assert len(machine.open_tickets) <= 4


def test_late_clients_come_later() -> None:
    protocol = virtual(4, speed="constant", jitter=0.0, late_fraction=0.5, late_until=50.0)
    rows = arrivals(protocol, machine_for(protocol, 4), 400)
    first = {k: next(place for place, (client, _) in enumerate(rows) if client == k) for k in range(4)}
    assert sorted(first.values())[:2] == [0, 1]
    assert sorted(first.values())[2] > 2


@pytest.mark.parametrize("speed", ["constant", "uniform", "lognormal", "pareto"])
def test_average_duration_is_one(speed: str) -> None:
    assert np.mean(virtual(4000, speed=speed).durations) == pytest.approx(1.0, abs=0.1)


def test_a_hasty_client_of_the_paper_protocol_answers_more_often_and_the_others_as_before() -> None:
    haste = Haste(frozenset({ClientId(2)}), 0.1)
    plain, hasty = PaperProtocol(5, 9, seed=0), PaperProtocol(5, 9, seed=0, haste=haste)
    usual, rows = (arrivals(protocol, machine_for(protocol, 5), 3000) for protocol in (plain, hasty))
    count = sum(client == 2 for client, _ in rows)
    share = 10 / (10 + 4)  # ten answers while each of four others gives one
    assert abs(count - 3000 * share) < 4 * np.sqrt(3000 * share * (1 - share))
    assert {delay for client, delay in rows if client == 2} == {0}
    others = [(before, now) for before, now in zip(usual, rows, strict=True) if now[0] != 2]
    assert all(before == now for before, now in others)
    assert len(others) > 600


def test_a_duration_of_one_is_no_haste() -> None:
    haste = Haste(frozenset({ClientId(2)}), 1.0)
    plain, unhurried = PaperProtocol(5, 9, seed=0), PaperProtocol(5, 9, seed=0, haste=haste)
    assert arrivals(plain, machine_for(plain, 5), 200) == arrivals(unhurried, machine_for(unhurried, 5), 200)
    with pytest.raises(SettingsError, match="duration = 2"):
        PaperProtocol(5, 9, seed=0, haste=Haste(haste.clients, 2.0))


def test_a_hasty_client_in_virtual_time() -> None:
    settings = VirtualTimeSettings(speed="constant", jitter=0.0)
    protocol = VirtualTimeProtocol(3, settings, 0, Haste(frozenset({ClientId(1)}), 0.25))
    rows = arrivals(protocol, machine_for(protocol, 3), 60)
    counts = Counter(client for client, _ in rows)
    assert protocol.durations == [1.0, 0.25, 1.0]
    assert counts[1] == pytest.approx(40, abs=1)  # four of six


def test_virtual_time_goes_on_from_saved_state() -> None:
    protocol = virtual(5, dropout_rate=0.3)
    machine = machine_for(protocol, 5)
    arrivals(protocol, machine, 40)
    restored, other = virtual(5, dropout_rate=0.3), machine_for(protocol, 5)
    restored.load_state_dict(protocol.state_dict())
    other.load_state_dict(machine.state_dict())
    assert arrivals(restored, other, 60) == arrivals(protocol, machine, 60)
