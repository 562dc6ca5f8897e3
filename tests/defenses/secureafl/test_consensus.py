from secureafl.defenses.secureafl.consensus import Agreement
from secureafl.types import ClientId


def heard(cosines: list[float], times: int = 3) -> Agreement:
    """Clients who agree with the median by these cosines, again and again."""
    agreement = Agreement(limit=4.0, decay=0.9)
    for _ in range(times):
        for client, cosine in enumerate(cosines):
            agreement.hear(ClientId(client), cosine)
    return agreement


USUAL = [0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16]


def test_one_far_below_the_others_opposes() -> None:
    assert heard([*USUAL, -0.5]).opposing == {ClientId(9)}


def test_honest_differences_are_not_held_against_anyone() -> None:
    assert not heard([*USUAL, -0.05]).opposing


def test_agreeing_more_than_others_is_no_fault() -> None:
    assert not heard([*USUAL, 0.9]).opposing


def test_two_in_five_liars_do_not_hide_one_another() -> None:
    liars = [-0.3, -0.4, -0.5, -0.6]
    assert heard([*USUAL, *liars]).opposing == {ClientId(9 + place) for place in range(4)}


def test_few_clients_are_never_judged() -> None:
    assert not heard([0.1, 0.1, 0.1, -0.9]).opposing


def test_one_update_is_not_enough() -> None:
    agreement = heard([*USUAL, 0.1])
    agreement.hear(ClientId(10), -0.9)
    assert not agreement.opposing
    assert agreement.would_oppose(ClientId(10), -0.9)
    agreement.hear(ClientId(10), -0.9)
    assert agreement.opposing == {ClientId(10)}


def test_one_who_opposed_comes_back_only_when_it_agrees_as_much_as_most() -> None:
    agreement = heard([*USUAL, -0.5])
    seen = []
    while ClientId(9) in agreement.opposing:
        agreement.hear(ClientId(9), 0.12)
        seen.append(agreement.average(ClientId(9)))
    assert len(seen) > 10
    assert seen[-2] < 0.08 <= seen[-1]  # the median of all ten, itself among the upper ones by then


def test_state_goes_on_where_it_was() -> None:
    agreement = heard([*USUAL, -0.5])
    copy = Agreement(limit=4.0, decay=0.9)
    copy.load_state_dict(agreement.state_dict())
    assert copy.opposing == agreement.opposing
    for one in (agreement, copy):
        one.hear(ClientId(3), -0.8)
    assert copy.average(ClientId(3)) == agreement.average(ClientId(3))
    assert copy.opposing == agreement.opposing
