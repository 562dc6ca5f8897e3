"""What every attack promises, whatever it does. Each check raises an `AssertionError` that says what to mend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secureafl.errors import SettingsError
from secureafl.lab.attacks import Attack, AttackEntry, View, attack_entry, find_attack
from secureafl.testing.attack_views import QuadraticTask, benign_rows, view
from secureafl.testing.promises import require, require_numbers
from secureafl.types import ClientId, Model, Vector

DIM = QuadraticTask().dim
DIVERGED = (np.nan, np.inf, 3e38)
"""What parameters and updates are made of once a federation has diverged."""


@dataclass(frozen=True)
class Trial:
    """One attack with its settings."""

    entry: AttackEntry
    settings: Mapping[str, object]

    def build(self) -> Attack:
        """A new object of this attack."""
        return self.entry.build(self.settings)

    def update(self, seen: View) -> Vector:
        """What a new object of it sends."""
        return self.build().update(seen)


def trial(attack: str | type[Any] | AttackEntry, settings: Mapping[str, object]) -> Trial:
    """The attack that is given as a class, a name or an entry."""
    if isinstance(attack, str):
        return Trial(find_attack(attack), settings)
    return Trial(attack_entry(getattr(attack, "__qualname__", "the entry"), attack), settings)


def sends_a_vector_of_its_own(trial: Trial) -> None:
    """An update is a finite float32 vector of the model's length, and nothing that the attack was shown is changed."""
    seen = view()
    before = _shown(seen)
    sent = trial.update(seen)
    require(isinstance(trial.build(), Attack), "an attack needs update, observe, state_dict and load_state_dict")
    require(
        isinstance(sent, np.ndarray) and sent.dtype == np.float32 and sent.shape == (DIM,),
        f"update returned type {getattr(sent, 'dtype', type(sent))} and shape {np.shape(sent)}; make it float32 and "
        "as long as view.base.params",
    )
    require(bool(np.isfinite(sent).all()), "update returned what is not finite; the server refuses that")
    require(not np.shares_memory(sent, seen.gradient), "update returned view.gradient itself; return a copy")
    same = all(np.array_equal(was, now) for was, now in zip(before, _shown(seen), strict=True))
    require(same, "update wrote to what it was shown; work on copies")


def gives_equal_bits(trial: Trial) -> None:
    """Equal views lead to equal updates: all randomness is `view.rng`."""
    first, second = trial.update(view()), trial.update(view())
    require(np.array_equal(first, second), "two equal views led to different updates; take randomness from view.rng")


def goes_on_after_a_restart(trial: Trial) -> None:
    """State is arrays of numbers, and a restored attack goes on as if it had never stopped."""
    attack, restored = trial.build(), trial.build()
    attack.update(view())
    state = attack.state_dict()
    require_numbers(state)
    restored.load_state_dict(state)
    later = Model(9, view().base.params + np.float32(0.1))
    for one in (attack, restored):
        one.observe(later)
    sent, expected = (one.update(view(model=later, client=ClientId(7))) for one in (restored, attack))
    require(np.array_equal(sent, expected), "restored, it sent something else; put all it remembers into state_dict")


def knows_whether_it_needs_classes(trial: Trial) -> None:
    """In a regression it raises a `SettingsError` if its entry says `needs_classes`, and works if not."""
    regression = view(QuadraticTask(num_classes=None))
    try:
        sent = trial.update(regression)
    except SettingsError as error:
        require(trial.entry.needs_classes, f"it refused a regression ({error}); say needs_classes=True in its entry")
        return
    require(not trial.entry.needs_classes, "its entry says needs_classes, and it did not refuse a regression")
    require(bool(np.isfinite(sent).all()), "in a regression, update returned what is not finite")


def survives_a_diverged_federation(trial: Trial) -> None:
    """A model and updates that are not finite are no reason to raise."""
    for value in DIVERGED:
        bad = np.full(DIM, value, np.float32)
        rows = benign_rows(DIM) | {ClientId(0): bad, ClientId(9): bad}
        seen = view(base=Model(3, bad), gradient=-bad, updates=rows)
        try:
            sent = trial.update(seen)
        except Exception as error:
            raise AssertionError(f"update raised {error!r} after a model of {value}") from error
        require(sent.shape == (DIM,), f"after a model of {value}, update returned shape {sent.shape}")


CHECKS: Sequence[Callable[[Trial], None]] = (
    sends_a_vector_of_its_own,
    gives_equal_bits,
    goes_on_after_a_restart,
    knows_whether_it_needs_classes,
    survives_a_diverged_federation,
)
"""The whole contract, what is simplest to mend first."""


def _shown(seen: View) -> list[Any]:
    rows = [row.copy() for row in seen.updates.values()]
    return [seen.base.params.copy(), seen.model.params.copy(), seen.gradient.copy(), *map(np.copy, seen.batch), *rows]
