"""The two visible compositions are what the flat settings build, and a stage of one's own goes in beside them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.golden import scenario
from tests.support import Federation, Quadratic, model, update

from secureafl import SecureAFL, SecureAFLSettings
from secureafl.defenses.base import Defense
from secureafl.defenses.secureafl import Arrival, Judge, Median, Pipeline, Stages, default, median, published
from secureafl.errors import SettingsError, StateError


@pytest.mark.parametrize(
    ("record", "stages"),
    [
        ("secureafl", default(scenario.DIM)),
        ("secureafl-median", median(scenario.DIM)),
        ("secureafl-published", published(scenario.DIM, server_lr=scenario.SERVER_LR)),
    ],
)
def test_a_composition_repeats_the_record_of_its_settings(
    record: str, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads((scenario.RECORDS / f"{record}.json").read_text())
    monkeypatch.setattr(Quadratic, "defense", lambda *args, **settings: Pipeline(stages))
    found = scenario.play(record)
    if found.rounding == expected["rounding"]:
        assert [line.split()[0] for line in found.arrivals] == [line.split()[0] for line in expected["arrivals"]]
    assert found.sample == pytest.approx(expected["sample"], rel=1e-3, abs=1e-4)


class NoLongSteps(Judge):
    """Rejects what is more than ten times as long as the sender's change: a rule of a user's own."""

    name = "no-long-steps"

    def judge(self, arrival: Arrival) -> str | None:
        return "too-long" if arrival.known and arrival.norm > 10.0 * arrival.delta_change else None


def test_a_judge_of_ones_own_is_asked_after_the_others_and_its_word_is_the_reason() -> None:
    stages = default(3)
    defense = Pipeline(replace(stages, judges=(*stages.judges, NoLongSteps())))
    assert isinstance(defense, Defense)
    start = model(0, [0, 0, 0])
    assert defense.step(update(0, start, [1, 0, 0]), start).accepted
    later = model(1, [0, 0, 1])
    verdict = defense.step(update(0, later, [1, 0.01, 0]), later)
    assert (verdict.accepted, verdict.reason) == (False, "too-long")
    assert defense.history.last_delta(update(0, start, [0]).client).tolist() == [1, 0, 0]  # left as it was


def test_two_stages_of_one_name_are_refused() -> None:
    stages = default(3)
    with pytest.raises(SettingsError, match="two stages are called 'no-long-steps'"):
        Pipeline(replace(stages, judges=(NoLongSteps(), NoLongSteps())))


def test_a_combiner_can_be_exchanged() -> None:
    problem = Quadratic(num_clients=12)
    by_hand = Pipeline(replace(median(problem.dim), combine=Median(bucket=3)))
    by_settings = SecureAFL(problem.dim, SecureAFLSettings(aggregate="median", bucket=3))
    ends = [Federation(problem, one) for one in (by_hand, by_settings)]
    for end in ends:
        end.run(150)
    np.testing.assert_array_equal(ends[0].machine.model.params, ends[1].machine.model.params)


def test_state_of_another_composition_is_refused_with_what_is_missing() -> None:
    saved = Pipeline(published(4)).state_dict()
    with pytest.raises(
        StateError, match=r"saved state holds no '(direction|votes|clients|accepted)': it is of another defense"
    ):
        Pipeline(default(4)).load_state_dict(saved)


def test_state_of_another_shape_is_named() -> None:
    state = SecureAFL(4).state_dict()
    state["consensus.opposing"] = np.array([1, 2], np.int64)
    with pytest.raises(StateError, match="saved state is of another shape"):
        SecureAFL(4).load_state_dict(state)


def test_the_learning_rate_matters_only_where_estimates_are_corrected() -> None:
    assert Pipeline(default(4)).server_lr is None
    assert Pipeline(published(4, server_lr=0.3)).server_lr == 0.3
