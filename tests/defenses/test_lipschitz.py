import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl.defenses.lipschitz import FactorLog, lipschitz_factor
from secureafl.kernels import reference

factors = st.floats(0.0, 1e6, allow_nan=False)


def test_factor_is_the_ratio_of_changes() -> None:
    assert lipschitz_factor(6.0, 2.0) == 3.0


def test_on_an_unchanged_model_the_same_update_is_smooth_and_another_infinitely_abrupt() -> None:
    assert lipschitz_factor(0.0, 0.0) == 0.0
    assert lipschitz_factor(1e-9, 0.0) == math.inf


def test_first_factor_always_passes() -> None:
    assert FactorLog(0.1).admit(1e9)


def test_an_infinite_factor_neither_passes_nor_joins() -> None:
    log = FactorLog(1.0)
    assert not log.admit(math.inf)
    assert len(log) == 0


def test_rejected_factors_join_the_log_too() -> None:
    log = FactorLog(0.5)
    for factor in (1.0, 1.0, 9.0):
        log.admit(factor)
    assert len(log) == 3
    assert log.threshold() == 1.0


@given(st.lists(factors, max_size=60), factors, st.floats(0.01, 0.99))
def test_order_statistic_form_equals_interpolated_percentile(old: list[float], new: float, percentile: float) -> None:
    log = FactorLog(percentile)
    for factor in old:
        log.admit(factor)
    threshold = reference.percentile(np.array([*old, new]), percentile)
    close = math.isclose(new, threshold, rel_tol=1e-9)  # interpolation rounds; the order statistic does not
    assert log.admit(new) == (new <= threshold) or close


@given(st.lists(factors, min_size=1, max_size=60))
def test_percentile_one_lets_everything_pass(values: list[float]) -> None:
    log = FactorLog(1.0)
    assert all(log.admit(value) for value in values)


@given(st.lists(factors, max_size=60), st.integers(1, 10))
def test_window_equals_a_log_of_the_last_factors_only(values: list[float], window: int) -> None:
    log, fresh = FactorLog(0.7, window), FactorLog(0.7)
    for value in values:
        log.admit(value)
    for value in values[-window:]:
        fresh.admit(value)
    assert len(log) == len(fresh)
    assert log.threshold() == fresh.threshold()


@pytest.mark.parametrize("percentile", [0.5, 0.8, 0.95])
def test_acceptance_tends_to_the_percentile_for_iid_factors(percentile: float) -> None:
    log = FactorLog(percentile)
    draws = np.random.default_rng(0).lognormal(size=20_000)
    passed = [log.admit(float(draw)) for draw in draws]
    assert np.mean(passed[2_000:]) == pytest.approx(percentile, abs=0.015)


@given(st.lists(factors, max_size=40), st.lists(factors, max_size=40), st.none() | st.integers(1, 10))
def test_restored_log_goes_on_alike(before: list[float], after: list[float], window: int | None) -> None:
    log, restored = FactorLog(0.6, window), FactorLog(0.6, window)
    for value in before:
        log.admit(value)
    restored.load_state_dict(log.state_dict())
    assert [log.admit(v) for v in after] == [restored.admit(v) for v in after]
