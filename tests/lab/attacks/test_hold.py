import numpy as np

from secureafl import Model, Update
from secureafl.lab.attacks import Hold, HoldSettings
from secureafl.testing.attack_views import view


def test_first_contact_is_reversed_or_honest() -> None:
    seen = view()
    np.testing.assert_array_equal(Hold().update(seen), -seen.gradient)
    np.testing.assert_array_equal(Hold(HoldSettings(opening="honest")).update(seen), seen.gradient)


def test_afterwards_the_stored_reference_is_repeated_and_always_passes() -> None:
    seen, rng = view(), np.random.default_rng(0)
    opening = Hold().update(seen)
    shadow = seen.shadow
    shadow.step(Update(seen.client, seen.base, opening), seen.model)
    for version in range(6, 30):
        elsewhere = Model(version, rng.normal(size=131).astype(np.float32))
        sent = Hold().update(view(shadow=shadow, base=elsewhere))
        np.testing.assert_array_equal(sent, opening)
        verdict = shadow.step(Update(seen.client, elsewhere, sent), elsewhere)
        assert verdict.accepted
        assert verdict.evidence["lipschitz_factor"] == 0
