import numpy as np

from secureafl.lab.simulation.trace import Trace
from secureafl.types import Reason, Verdict


def filled() -> Trace:
    trace = Trace()
    trace.add(3, 0, 77, Verdict(True, Reason.FIRST_CONTACT))
    trace.add(1, 1, 78, Verdict(False, Reason.CHANGED_TOO_ABRUPTLY, None, {"lipschitz_factor": 2.5}))
    return trace


def test_columns_hold_what_was_added() -> None:
    columns = filled().columns()
    assert columns["client"].tolist() == [3, 1]
    assert columns["accepted"].tolist() == [True, False]
    assert columns["lipschitz_factor"].tolist()[1] == 2.5
    assert np.isnan(columns["lipschitz_factor"][0])
    assert [filled().reasons[place] for place in columns["reason"].tolist()] == [
        "first-contact",
        "changed-too-abruptly",
    ]


def test_the_arrival_hash_ignores_verdicts_and_nothing_else() -> None:
    other = Trace()
    other.add(3, 0, 77, Verdict(False, Reason.TOO_STALE))
    assert other.arrivals_sha256() != filled().arrivals_sha256()
    other.add(1, 1, 78, Verdict(True, Reason.ACCEPTED))
    assert other.arrivals_sha256() == filled().arrivals_sha256()


def test_goes_on_from_saved_state() -> None:
    trace = Trace()
    trace.load_state_dict(filled().state_dict())
    assert trace.arrivals_sha256() == filled().arrivals_sha256()
    assert trace.reasons == filled().reasons
    assert len(trace) == 2
