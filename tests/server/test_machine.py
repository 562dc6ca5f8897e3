import numpy as np
import pytest
from tests.support import Federation, Quadratic

from secureafl import ClientId, Machine, MachineSettings, Vector
from secureafl.defenses import AsyncSGD
from secureafl.errors import SecureAFLError, SettingsError, StateError
from secureafl.types import Reason


def machine(**settings: object) -> Machine:
    made = Machine(AsyncSGD(2), np.zeros(2, np.float32), MachineSettings(**settings))  # type: ignore[arg-type]
    for name in ("a", "b", "c"):
        made.enrol(name)
    return made


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


A, B = ClientId(0), ClientId(1)


def test_an_arrival_moves_the_model_against_its_direction() -> None:
    server = machine(server_lr=0.5)
    verdict = server.receive(server.issue(A).number, vector(2, -4))
    assert verdict.accepted
    assert server.model.version == 1
    assert server.model.params.tolist() == [-1, 2]


def test_enrolling_the_same_name_twice_gives_the_same_id() -> None:
    server = machine()
    assert server.enrol("b") == B
    assert server.enrol("d") == ClientId(3)
    assert server.roster == ["a", "b", "c", "d"]


def test_base_and_identity_come_from_the_ticket() -> None:
    server = machine()
    slow = server.issue(A)
    for _ in range(3):
        server.receive(server.issue(B).number, vector(1, 1))
    verdict = server.receive(slow.number, vector(0, 0))
    assert verdict.evidence["staleness"] == 3


def test_the_published_model_averages_the_last_tenth_and_never_more_than_asked() -> None:
    server, seen = machine(average_over=3), []
    for arrival in range(60):
        server.receive(server.issue(A).number, vector(1 if arrival % 2 else -1, 0))
        seen.append(server.model.params[0])
        if arrival < 9:
            assert server.published.params[0] == server.model.params[0]
    assert server.published.version == server.model.version
    expected = seen[18]
    for arrival in range(19, 60):
        expected += (seen[arrival] - expected) / min(3, (arrival + 1) // 10)
    assert server.published.params[0] == pytest.approx(expected, abs=1e-6)
    assert abs(server.published.params[0] - np.mean(seen[-20:])) < abs(server.model.params[0] - np.mean(seen[-20:]))


def test_an_answer_to_no_open_ticket_counts_as_nothing() -> None:
    server = machine()
    ticket = server.issue(A)
    server.receive(ticket.number, vector(1, 1))
    for number, reason in ((ticket.number, Reason.TICKET_CLOSED), (99, Reason.UNSOLICITED), (-1, Reason.UNSOLICITED)):
        before = server.model
        assert server.receive(number, vector(1, 1)).reason == reason
        assert server.model is before


def test_a_withdrawn_ticket_is_no_longer_open() -> None:
    server = machine()
    ticket = server.issue(A)
    server.withdraw(ticket.number)
    server.withdraw(ticket.number)
    assert server.open_tickets == []
    assert server.receive(ticket.number, vector(1, 1)).reason == Reason.TICKET_CLOSED


def test_too_stale_an_answer_is_refused_and_its_model_was_dropped_before() -> None:
    server = machine(max_staleness=2)
    slow = server.issue(A)
    for _ in range(3):
        server.receive(server.issue(B).number, vector(1, 1))
    assert 0 not in server.held_versions
    verdict = server.receive(slow.number, vector(1, 1))
    assert verdict.reason == Reason.TOO_STALE
    assert verdict.evidence["staleness"] == 3
    assert server.model.params.tolist() == [-3, -3]
    assert server.model.version == 3, "refused without being judged: no arrival"


def test_garbage_closes_its_ticket_and_counts_as_nothing() -> None:
    server = machine()
    before = server.model
    for answer in (vector(np.nan, 0), np.zeros(3, np.float32)):
        ticket = server.issue(A)
        assert server.receive(ticket.number, answer).reason in {Reason.NOT_FINITE, Reason.WRONG_SHAPE}
        assert server.ticket(ticket.number) is None
    server.refuse(server.issue(A).number, Reason.MALFORMED)
    assert server.model is before
    assert server.open_tickets == []


def test_a_run_that_0_1_began_goes_on_counting_refused_updates() -> None:
    server = machine(count_refused=True)
    before = server.model
    server.receive(server.issue(A).number, vector(np.nan, 0))
    server.refuse(server.issue(A).number, Reason.MALFORMED)
    assert server.model.version == 2
    assert server.model.params is before.params


def test_versions_are_released_whoever_still_holds_them() -> None:
    """Against the plain rule: a version is held while it is recent, or in use and not too stale."""
    for keep, limit in ((0, None), (3, None), (0, 4), (2, 4), (6, 4)):
        server, rng = machine(keep_recent=keep, max_staleness=limit), np.random.default_rng(7)
        for _ in range(300):
            if server.open_tickets and rng.random() < 0.5:
                ticket = server.open_tickets[int(rng.integers(len(server.open_tickets)))]
                if rng.random() < 0.2:
                    server.withdraw(ticket.number)
                else:
                    server.receive(ticket.number, vector(1e-3, 0))
            else:
                server.issue(A)
            present, used = server.model.version, {ticket.version for ticket in server.open_tickets}
            assert server.held_versions == [
                version
                for version in range(present + 1)
                if version >= present - keep or (version in used and (limit is None or version >= present - limit))
            ]


def test_a_step_beyond_float32_is_refused() -> None:
    server = machine(server_lr=1e21)
    verdict = server.receive(server.issue(A).number, vector(1e18, 0))
    assert not verdict.accepted
    assert verdict.reason == Reason.MODEL_OVERFLOW
    assert server.model.params.tolist() == [0, 0]


def test_thousands_of_versions_hold_only_the_models_someone_needs() -> None:
    server = machine()
    slow = server.issue(A)
    for _ in range(5_000):
        server.receive(server.issue(B).number, vector(1e-3, 0))
    assert server.held_versions == [0, 5_000]
    server.withdraw(slow.number)
    assert server.held_versions == [5_000]


def test_kept_versions_can_be_issued_again_and_others_cannot() -> None:
    server = machine(keep_recent=2)
    for _ in range(5):
        server.receive(server.issue(B).number, vector(1, 0))
    assert server.held_versions == [3, 4, 5]
    assert server.model_of(server.issue(A, version=3)).params.tolist() == [-3, 0]
    with pytest.raises(SecureAFLError, match="version 2 is no longer held; keep_recent is 2"):
        server.issue(A, version=2)


def test_only_enrolled_clients_get_tickets() -> None:
    with pytest.raises(SecureAFLError, match="client 7 is not enrolled"):
        machine().issue(ClientId(7))


def test_models_handed_out_cannot_be_written_to() -> None:
    server = machine()
    with pytest.raises(ValueError, match="read-only"):
        server.model.params[0] = 1


def test_restored_machine_has_the_same_tickets_models_and_names() -> None:
    server, restored = (
        machine(keep_recent=1),
        Machine(AsyncSGD(2), np.ones(2, np.float32), MachineSettings(keep_recent=1)),
    )
    slow = server.issue(A)
    for _ in range(4):
        server.receive(server.issue(B).number, vector(1, np.nan if server.model.version == 2 else 0))
    restored.load_state_dict(server.state_dict())
    assert restored.roster == server.roster
    assert restored.held_versions == server.held_versions
    assert [t.number for t in restored.open_tickets] == [slow.number]
    verdicts = [m.receive(slow.number, vector(0, 1)) for m in (server, restored)]
    assert verdicts[0].evidence == verdicts[1].evidence
    np.testing.assert_array_equal(server.model.params, restored.model.params)
    assert restored.issue(B).number == server.issue(B).number


def test_versions_with_equal_parameters_are_saved_once() -> None:
    server = machine(keep_recent=10, count_refused=True)
    for _ in range(6):
        server.receive(server.issue(B).number, vector(np.nan, 0))
    assert server.state_dict()["params"].shape == (1, 2)
    restored = machine(keep_recent=10)
    restored.load_state_dict(server.state_dict())
    assert len(restored.held_versions) == 7
    assert restored.state_dict()["params"].shape == (1, 2)


def test_state_of_another_model_is_refused() -> None:
    other = Machine(AsyncSGD(3), np.zeros(3, np.float32))
    with pytest.raises(StateError, match="saved model has 3 parameters; this one has 2"):
        machine().load_state_dict(other.state_dict())


def test_the_machine_uses_no_global_randomness_or_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> float:
        raise AssertionError("the machine must not do this")

    problem = Quadratic()
    federation = Federation(problem, problem.defense("secureafl"))
    federation.run(20)
    ticket = federation.machine.issue(A)
    delta = problem.gradient(0, federation.machine.model_of(ticket).params)
    for target in ("time.time", "time.monotonic", "time.perf_counter", "random.random", "numpy.random.default_rng"):
        monkeypatch.setattr(target, forbidden)
    state = str(np.random.get_state())  # noqa: NPY002
    federation.machine.receive(ticket.number, delta)
    assert str(np.random.get_state()) == state  # noqa: NPY002


@pytest.mark.parametrize("name", ["sageflow", "zenopp"])
def test_a_defense_that_counts_on_another_learning_rate_is_refused(name: str) -> None:
    problem = Quadratic()
    with pytest.raises(SettingsError, match=r"counts on server_lr = 0.05, the machine has 0.1: give both the same"):
        Machine(problem.defense(name), np.zeros(12, np.float32), MachineSettings(server_lr=0.1))


def test_the_server_above_moves_the_model_whole_and_no_defense_judges_it() -> None:
    server = machine(server_lr=0.5, upstream="top")
    top = server.enrol("top")
    before = server.defense.state_dict()
    server.receive(server.issue(A).number, vector(2, -4))
    verdict = server.receive(server.issue(top).number, vector(-3, 1))
    assert (verdict.accepted, verdict.reason) == (True, Reason.FROM_ABOVE)
    assert verdict.evidence == {"norm": pytest.approx(10**0.5), "staleness": 0.0}
    assert server.model.params.tolist() == [-1 + 3, 2 - 1]
    assert server.model.version == 2
    assert server.defense.state_dict().keys() == before.keys()


def test_a_move_from_above_that_is_no_vector_is_refused() -> None:
    server = machine(upstream="top")
    ticket = server.issue(server.enrol("top"))
    assert server.receive(ticket.number, vector(np.nan, 0)).reason == Reason.NOT_FINITE
    assert server.model.params.tolist() == [0, 0]
    assert server.model.version == 0


def test_nobody_is_above_a_server_that_names_no_one() -> None:
    server = machine(server_lr=0.5)
    verdict = server.receive(server.issue(server.enrol("top")).number, vector(-3, 1))
    assert verdict.reason == Reason.ACCEPTED
    assert server.model.params.tolist() == [1.5, -0.5]
