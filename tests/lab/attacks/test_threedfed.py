from typing import Any

import numpy as np
import pytest

from secureafl import ClientId, Model, Vector
from secureafl.errors import SettingsError
from secureafl.lab.attacks import ThreeDFed, ThreeDFedSettings
from secureafl.lab.attacks.attack import View, benign_norm, length
from secureafl.lab.attacks.threedfed_maths import final_rows
from secureafl.testing.attack_views import NUM_CLASSES, QuadraticTask, batch, draws, view

LIARS = frozenset(map(ClientId, (6, 7, 8, 9)))
ROWS = final_rows(QuadraticTask().layout, NUM_CLASSES)


def attack(**settings: Any) -> ThreeDFed:
    return ThreeDFed(ThreeDFedSettings(**{"num_rows": 3, **settings}))


def see(client: int, model: Model, **changes: Any) -> View:
    rng = np.random.default_rng([client, model.version])
    return view(
        client=ClientId(client),
        malicious=LIARS,
        base=model,
        model=model,
        rng=rng,
        batch=batch(model.version),
        draw_batch=draws(100 + model.version),
        **changes,
    )


def play(three: ThreeDFed, num_updates: int, *, believed: float, start: int = 0) -> list[Vector]:
    """Malicious updates in turn, each followed by a step of `believed` times what was sent."""
    params, sent = np.full(131, 0.1, np.float32), []
    for version in range(start, start + num_updates):
        model = Model(version, params)
        sent.append(three.update(see(6 + version % 4, model)))
        params = params - np.float32(0.01 * believed) * sent[-1]
        three.observe(Model(version + 1, params))
        params = np.full(131, 0.1, np.float32)  # every update starts from the same weights
    return sent


def feedback(three: ThreeDFed) -> list[float]:
    return [phi for _, phi in np.asarray(three.state_dict()["feedback"], np.float64).tolist()]


def test_masks_dealt_in_one_cycle_sum_to_zero() -> None:
    bare, masked = attack(mask_std=1e-30, mask_steps=0), attack()
    model = Model(0, np.full(131, 0.1, np.float32))
    masks = [masked.update(see(k, model)) - bare.update(see(k, model)) for k in (6, 7)]  # one group of two
    outside = np.setdiff1d(np.arange(131), ROWS)
    assert all((mask[outside] == 0).all() for mask in masks)
    assert (masks[0][ROWS[0]] == 0).all()  # the target's row
    assert sum(bool(masks[0][row].any()) for row in ROWS) == 3
    np.testing.assert_allclose(masks[0] + masks[1], 0, atol=1e-5 * np.abs(masks[0]).max())


def test_plain_steps_read_as_one_and_are_accepted() -> None:
    three = attack()
    play(three, 3, believed=1.0)
    np.testing.assert_allclose(feedback(three), [1, 1, 1], atol=1e-4)


def test_unchanged_model_reads_as_zero_and_calls_for_decoys() -> None:
    three = attack()
    play(three, 3, believed=0.0)
    assert feedback(three) == [0, 0, 0]
    play(three, 2, believed=0.0, start=3)  # the fifth update finds four answers and tunes
    assert three.state_dict()["num_decoys"] == 1
    assert three.state_dict()["noise_met"] == 0


def test_noise_stops_tuning() -> None:
    three = attack()
    play(three, 5, believed=-1.0)
    state = three.state_dict()
    assert state["noise_met"] == 1
    assert np.asarray(state["alphas"]).tolist() == [0.1, 0.1]
    play(three, 5, believed=1.0, start=5)
    assert np.asarray(three.state_dict()["alphas"]).tolist() == [0.1, 0.1]


def test_decoy_trains_clean_and_drives_one_weight_away() -> None:
    three = attack(num_steps=1)
    play(three, 5, believed=0.0)
    model = Model(9, np.full(131, 0.1, np.float32))
    seen = see(9, model)
    sent = three.update(seen)  # the last malicious client is the decoy now
    odd = np.flatnonzero(sent != seen.gradient)
    assert len(odd) == 2  # the driven weight, and the indicator
    driven = [j for j in odd if j in ROWS]
    assert len(driven) == 1
    assert -0.01 * (sent - seen.gradient)[driven[0]] == pytest.approx(10, rel=1e-4)


def test_indicator_is_no_larger_than_any_honest_coordinate() -> None:
    three, model = attack(), Model(0, np.full(131, 0.1, np.float32))
    seen = see(6, model)
    sent = three.update(seen)
    _, place, before, value, _, _ = np.asarray(three.state_dict()["pending"])[0].tolist()
    assert sent[int(place)] == np.float32(value)
    assert before == model.params[int(place)]
    assert int(place) not in ROWS
    largest = max(float(np.abs(row).max()) for row in seen.updates.values())
    assert abs(value) == pytest.approx(largest)


def test_update_is_lengthened_to_honest_length_at_most_fivefold() -> None:
    model = Model(0, np.full(131, 0.1, np.float32))
    quiet = {"mask_std": 1e-30, "mask_steps": 0, "amplify": 1.0001}
    plain = length(attack(**quiet, max_scale=1).update(see(6, model)))
    for factor, expected in ((0.5, 1.0), (3.0, 3.0), (40.0, 5.0)):
        row = np.full(131, factor * plain / np.sqrt(131), np.float32)
        seen = see(6, model, updates={ClientId(0): row})
        assert benign_norm(seen) == pytest.approx(factor * plain, rel=1e-5)
        assert length(attack(**quiet).update(seen)) == pytest.approx(expected * plain, rel=1e-2)


def test_restored_attack_goes_on_bit_for_bit() -> None:
    through, first, second = attack(), attack(), attack()
    expected = play(through, 11, believed=0.4)
    play(first, 6, believed=0.4)
    state = first.state_dict()
    assert all(value.dtype.kind in "fi" for value in state.values())
    second.load_state_dict(state)
    for left, right in zip(play(second, 5, believed=0.4, start=6), expected[6:], strict=True):
        np.testing.assert_array_equal(left, right)
    for key, value in through.state_dict().items():
        np.testing.assert_array_equal(second.state_dict()[key], value)


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(SettingsError, match="num_rows = 5; there are 4"):
        attack(num_rows=5).update(view())
