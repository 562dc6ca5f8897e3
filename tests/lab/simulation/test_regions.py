"""Regions on vectors small enough to follow by hand."""

from __future__ import annotations

import numpy as np
import pytest

from secureafl import Machine, MachineSettings, Vector, build_defense
from secureafl.errors import SecureAFLError
from secureafl.lab.simulation.regions import TOP, Regions
from secureafl.types import ClientId, Reason


def server(defense: str, server_lr: float, dim: int, upstream: str | None = None) -> Machine:
    settings = MachineSettings(server_lr=server_lr, keep_recent=3, upstream=upstream, count_refused=True)
    return Machine(build_defense(defense, dim, server_lr=server_lr), np.zeros(dim, np.float32), settings)


def federation(
    defense: str = "asyncsgd", num_regions: int = 2, each: int = 2, report_every: int = 2, dim: int = 2
) -> Regions:
    """Regions with rate 1/2 below a top with rate 1/4."""
    regions = [server(defense, 0.5, dim, TOP) for _ in range(num_regions)]
    made = Regions(server(defense, 0.25, dim), regions, each, report_every)
    for client in range(num_regions * each):
        made.enrol(f"client-{client}")
    return made


def send(regions: Regions, client: int, *values: float) -> None:
    regions.receive(regions.issue(ClientId(client)).number, np.array(values, np.float32))


def test_a_region_reports_how_far_it_came_and_then_follows_the_top() -> None:
    regions = federation()
    send(regions, 0, 2, 0)
    assert regions.regions[0].model.params.tolist() == [-1, 0]
    assert regions.model.params.tolist() == [0, 0]  # nothing was reported yet
    send(regions, 1, 2, 4)  # the region is at (-2, -2): it reports (2, 2), of which the top takes a quarter
    assert regions.model.params.tolist() == [-0.5, -0.5]
    assert regions.regions[0].model.params.tolist() == [-0.5, -0.5]
    assert regions.regions[1].model.params.tolist() == [0, 0]  # the other region has not asked
    assert regions.model.version == 2
    assert regions.top.model.version == 1


def test_a_report_is_measured_from_where_the_region_last_followed_the_top() -> None:
    regions = federation()
    for client, value in ((0, 2.0), (1, 2.0), (2, 4.0), (3, 4.0)):
        send(regions, client, value, 0)  # reports (2, 0) and (4, 0)
    assert regions.model.params.tolist() == [-1.5, 0]
    send(regions, 0, 0, 1)
    send(regions, 0, 0, 1)  # from (-0.5, 0) to (-0.5, -1): only (0, 1) is new
    assert regions.model.params.tolist() == [-1.5, -0.25]
    assert regions.regions[0].model.params.tolist() == [-1.5, -0.25]


def test_clients_are_known_by_one_number_and_get_their_own_regions_model() -> None:
    regions = federation()
    assert [regions.region_of(client) for client in range(4)] == [0, 0, 1, 1]
    assert regions.roster == [f"client-{k}" for k in range(4)]
    assert [regions.name_of(ClientId(k)) for k in range(4)] == regions.roster
    send(regions, 2, 2, 0)
    tickets = [regions.issue(ClientId(client)) for client in (0, 2, 3)]
    assert [ticket.client for ticket in tickets] == [0, 2, 3]
    assert [regions.model_of(ticket).params.tolist() for ticket in tickets] == [[0, 0], [-1, 0], [-1, 0]]
    assert [regions.ticket(ticket.number) is not None for ticket in tickets] == [True] * 3
    regions.withdraw(tickets[0].number)
    assert regions.ticket(tickets[0].number) is None


def test_a_version_some_arrivals_back_is_the_regions_as_many_of_its_own_back() -> None:
    regions = federation(report_every=10)
    for value in (2.0, 4.0):
        send(regions, 0, value, 0)
    for _ in range(3):
        send(regions, 2, 1, 1)
    ticket = regions.issue(ClientId(1), regions.model.version - 1)
    assert regions.model_of(ticket).params.tolist() == [-1, 0]
    first = regions.issue(ClientId(1), 0)  # five arrivals back: further than this region goes
    assert regions.model_of(first).params.tolist() == [0, 0]


def test_the_top_judges_regions_and_a_region_its_clients() -> None:
    regions, rng = federation("secureafl", num_regions=8, each=8, report_every=4, dim=30), np.random.default_rng(0)
    pull, reasons = rng.standard_normal(30), []
    for _ in range(3000):
        client = ClientId(int(rng.integers(64)))
        malicious = regions.region_of(client) == 3 or client == 0  # a whole region, and one client of another
        delta: Vector = (pull * (-1 if malicious else 1) + 0.3 * rng.standard_normal(30)).astype(np.float32)
        verdict = regions.receive(regions.issue(client).number, delta)
        if client == 0:
            reasons.append(verdict.reason)
    assert reasons[-1] == Reason.AGAINST_CONSENSUS
    columns = regions.reports.columns()
    accepted = [columns["accepted"][columns["client"] == place].astype(float).mean() for place in range(8)]
    assert accepted[3] < 0.1
    assert min(share for place, share in enumerate(accepted) if place != 3) > 0.9
    shares = regions.influence()
    assert shares is not None
    assert sum(shares.values()) == pytest.approx(1.0)
    assert sum(shares[ClientId(client)] for client in (0, *range(24, 32))) < 0.01


@pytest.mark.parametrize(("each", "length", "rejected"), [(4, -1, False), (8, -1, True), (4, -30, True)])
def test_a_region_of_four_is_too_small_to_tell_who_points_the_wrong_way(each: int, length: int, rejected: bool) -> None:
    regions, rng = federation("secureafl", each=each, report_every=1000, dim=10), np.random.default_rng(0)
    pull, accepted = rng.standard_normal(10), []
    for _ in range(400):
        client = ClientId(int(rng.integers(each)))  # all of the first region
        delta: Vector = (pull * (length if client == 0 else 1) + 0.3 * rng.standard_normal(10)).astype(np.float32)
        verdict = regions.receive(regions.issue(client).number, delta)
        if client == 0:
            accepted.append(verdict.accepted)
    share = sum(accepted) / len(accepted)
    assert share < 0.1 if rejected else share > 0.9


def test_it_goes_on_bit_for_bit() -> None:
    one, other = federation("secureafl"), federation("secureafl")

    def go(regions: Regions, first: int, last: int) -> None:
        for number in range(first, last):
            rng = np.random.default_rng(number)
            ticket = regions.issue(ClientId(int(rng.integers(4))), max(0, regions.model.version - 1))
            regions.receive(ticket.number, rng.standard_normal(2).astype(np.float32))

    go(one, 0, 41)
    other.load_state_dict(one.state_dict())
    go(one, 41, 80)
    go(other, 41, 80)
    assert np.array_equal(one.model.params, other.model.params)
    assert one.reports.columns().keys() == other.reports.columns().keys()
    assert len(one.reports) == len(other.reports) == 39


def test_there_is_no_place_for_one_more() -> None:
    with pytest.raises(SecureAFLError, match="all 4 places are taken"):
        federation().enrol("client-4")
