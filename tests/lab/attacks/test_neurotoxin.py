import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl.lab.attacks import Neurotoxin, NeurotoxinSettings, Scaling, ScalingSettings
from secureafl.lab.attacks.attack import benign_updates, length
from secureafl.lab.attacks.neurotoxin import quiet_mask
from secureafl.testing.attack_views import view


def test_mask_by_hand_with_ties_by_index() -> None:
    reference = np.array([1, -3, 2, 2, 0], np.float32)
    assert quiet_mask(reference, 0.6).tolist() == [True, False, False, True, True]  # -3, then the first 2


@given(st.integers(1, 4000))
def test_mask_hides_exactly_a_twentieth_rounded_up(dim: int) -> None:
    assert int((~quiet_mask(np.arange(dim, dtype=np.float32), 0.95)).sum()) == -(-dim // 20)


def test_update_is_exactly_zero_on_the_loudest_twentieth() -> None:
    seen = view()
    sent = Neurotoxin().update(seen)
    loud = np.argsort(-np.abs(benign_updates(seen).mean(axis=0)))[: math.ceil(0.05 * 131)]
    assert len(loud) == 7
    assert (sent[loud] == 0).all()
    assert (np.delete(sent, loud) != 0).all()


def test_ratio_one_is_the_plain_backdoor() -> None:
    sent = Neurotoxin(NeurotoxinSettings(keep_ratio=1)).update(view())
    np.testing.assert_array_equal(sent, Scaling(ScalingSettings(scale=1, num_steps=5)).update(view()))


def test_clean_reference_is_the_honest_gradient() -> None:
    seen = view()
    sent = Neurotoxin(NeurotoxinSettings(reference="clean")).update(seen)
    np.testing.assert_array_equal(sent == 0, ~quiet_mask(seen.gradient, 0.95))
    np.testing.assert_array_equal(sent, Neurotoxin().update(view(updates={})))


def test_projection_can_be_added() -> None:
    seen = view()
    sent = Neurotoxin(NeurotoxinSettings(radius_factor=0.1)).update(seen)
    median = np.median([length(row) for row in benign_updates(seen)])
    assert length(sent) == pytest.approx(0.1 * median, rel=1e-5)
