"""What every attack promises, whatever it does. A new one joins by its entry in `ATTACKS`."""

from typing import Any

import numpy as np
import pytest
from tests.lab.attacks.support import QuadraticTask, benign_rows, view

from secureafl import ClientId, Model
from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.lab.attacks import ATTACKS, Attack, build_attack
from secureafl.lab.attacks.attack import View

NAMES = list(ATTACKS)
RANDOM = {"gaussian", "threedfed", "whitewash"}


def build(name: str) -> Attack:
    return build_attack(name, {"num_rows": 3} if name == "threedfed" else {})


def snapshot(seen: View) -> list[Any]:
    rows = [row.copy() for row in seen.uploads.values()]
    return [seen.base.params.copy(), seen.model.params.copy(), seen.gradient.copy(), *map(np.copy, seen.batch), *rows]


def test_names() -> None:
    assert [
        *("label_flip", "sign_flip", "gaussian", "min_max", "adaptive", "hold"),
        *("scaling", "dba", "pgd", "neurotoxin", "threedfed", "apart", "mimic"),
        *("imitate", "flood", "whitewash"),
    ] == NAMES
    assert [n for n in NAMES if ATTACKS[n].is_backdoor] == [
        *("scaling", "dba", "pgd", "neurotoxin", "threedfed", "apart", "mimic")
    ]


def test_unknown_names_and_settings_say_what_to_write() -> None:
    with pytest.raises(UnknownSettingError, match="did you mean 'gaussian'"):
        build_attack("gausian")
    with pytest.raises(UnknownSettingError, match="did you mean 'scale'"):
        build_attack("scaling", {"scal": 3})


@pytest.mark.parametrize("name", NAMES)
def test_upload_is_a_finite_float32_vector_of_its_own(name: str) -> None:
    seen = view()
    before = snapshot(seen)
    sent = build(name).upload(seen)
    assert isinstance(build(name), Attack)
    assert sent.dtype == np.float32
    assert sent.shape == (131,)
    assert np.isfinite(sent).all()
    assert not np.shares_memory(sent, seen.gradient)
    for was, now in zip(before, snapshot(seen), strict=True):
        np.testing.assert_array_equal(was, now)


@pytest.mark.parametrize("name", NAMES)
def test_same_view_same_bits_and_only_the_own_stream_is_random(name: str) -> None:
    first, second = build(name).upload(view()), build(name).upload(view())
    np.testing.assert_array_equal(first, second)
    other = build(name).upload(view(rng=np.random.default_rng(77)))
    assert (first != other).any() == (name in RANDOM)


@pytest.mark.parametrize("name", NAMES)
def test_state_is_numbers_only_and_comes_back(name: str) -> None:
    attack, restored = build(name), build(name)
    attack.upload(view())
    state = attack.state_dict()
    assert all(isinstance(value, np.ndarray) and value.dtype.kind in "fi" for value in state.values())
    restored.load_state_dict(state)
    later = Model(9, view().base.params + np.float32(0.1))
    for one in (attack, restored):
        one.observe(later)
    seen = [view(model=later, client=ClientId(7)) for _ in range(2)]
    np.testing.assert_array_equal(attack.upload(seen[0]), restored.upload(seen[1]))


@pytest.mark.parametrize("name", [n for n in NAMES if ATTACKS[n].needs_classes])
def test_a_regression_is_refused_by_those_who_need_labels(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        build(name).upload(view(QuadraticTask(num_classes=None)))


@pytest.mark.parametrize("name", [n for n in NAMES if not ATTACKS[n].needs_classes])
def test_a_regression_is_attacked_by_the_others(name: str) -> None:
    assert np.isfinite(build(name).upload(view(QuadraticTask(num_classes=None)))).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_diverged_federation_is_no_reason_to_stop(name: str, value: float) -> None:
    bad = np.full(131, value, np.float32)
    rows = benign_rows(131) | {ClientId(0): bad, ClientId(9): bad}
    seen = view(base=Model(3, bad), gradient=-bad, uploads=rows)
    assert build(name).upload(seen).shape == (131,)
