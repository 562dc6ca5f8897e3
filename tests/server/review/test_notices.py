import pytest

from secureafl.server.record.entries import Entry, Event
from secureafl.server.review.audit import ClientRecord
from secureafl.server.review.notices import MIN_LOW_VOTES, notices, of_newcomers, said_of
from secureafl.types import Reason

FACTS = {"defense_settings": {"vouched": ["bank"], "weights": {"clinic": 0.5}, "tolerance": 3.0, "aggregate": "bank"}}


def heard(client: str, votes: list[float], *, alike: float = 9.0, accepted: bool = True) -> ClientRecord:
    record = ClientRecord(client)
    for number, vote in enumerate(votes):
        evidence = {"vote": vote, "alike": alike}
        record.add(Entry(1.0, number, client, Event.ARRIVAL, Reason.ACCEPTED, accepted, evidence))
    return record


def test_settings_say_of_whom_they_speak() -> None:
    assert said_of("bank", FACTS) == ["vouched"]
    assert said_of("clinic", FACTS) == ["weights 0.5"]
    assert said_of("anyone", FACTS) == []
    assert said_of("bank", {}) == []


def test_a_client_that_is_accepted_but_hardly_counts_is_told_of() -> None:
    found = notices([heard("a", [1.0] + [0.1] * MIN_LOW_VOTES)], FACTS)
    assert list(found) == ["a"]
    assert found["a"] == f"vote 0.1 at its last {MIN_LOW_VOTES} updates: about 9 clients keep asking for much the same"


def test_a_newcomer_held_back_is_told_of_with_another_reason() -> None:
    assert "too many clients are new" in notices([heard("a", [0.0] * MIN_LOW_VOTES, alike=1.0)], FACTS)["a"]


@pytest.mark.parametrize(
    "record",
    [
        heard("a", [0.1] * (MIN_LOW_VOTES - 1)),
        heard("a", [0.1] * MIN_LOW_VOTES + [0.6]),
        heard("a", [0.0] * MIN_LOW_VOTES, accepted=False),
        heard("bank", [0.1] * MIN_LOW_VOTES),
        heard("clinic", [0.1] * MIN_LOW_VOTES),
        ClientRecord("a"),
    ],
    ids=["soon", "over", "rejected", "vouched", "weighed", "silent"],
)
def test_nobody_else_is(record: ClientRecord) -> None:
    assert notices([record], FACTS) == {}


def test_updates_over_budget_are_counted_beside_rejections() -> None:
    record = ClientRecord("a")
    record.add(Entry(1.0, 0, "a", Event.ARRIVAL, Reason.OVER_BUDGET, True, {}))
    record.add(Entry(1.0, 1, "a", Event.ARRIVAL, Reason.TOO_LONG, False, {}))
    assert record.accepted == 1
    assert record.happened() == {"over-budget": 1, "too-long": 1}


def accepted(num_clients: int, count: int) -> list[ClientRecord]:
    return [ClientRecord(f"{count}-{number}", arrivals=count, accepted=count) for number in range(num_clients)]


def test_where_hardly_anyone_returns_the_operator_is_told_what_to_set() -> None:
    facts = {"defense_settings": {"full_vote_after": 5, "newcomer_share": 0.2}}
    found = of_newcomers(accepted(10, 5) + accepted(60, 1), facts)
    assert found is not None
    assert found.startswith("60 of 70 clients have had fewer than 5 updates accepted")
    assert "full_vote_after = 1" in found
    assert of_newcomers(accepted(10, 5) + accepted(40, 1), facts) is None  # eight votes: fewer than ten others have
    assert of_newcomers(accepted(9, 5) + accepted(60, 1), facts) is None  # all votes count while there are so few
    assert of_newcomers(accepted(10, 5) + accepted(60, 1), {"defense_settings": {"window": 3}}) is None
