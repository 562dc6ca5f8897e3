"""Whose values the model follows, at a run's newest snapshots.

With a running mean, this is each vote's share of all weights. With a median, it is how often each client's vote is the
median: of two middle votes each counts half. Either way the shares of all clients add up to one. Clients who are much
alike have about 1/n each in a median; one that never agrees with the others has less, and one that the others straddle
has more. Those without a vote at the time have none. Votes are taken singly here, also where the server averages them
in pairs drawn by lot.
"""

from __future__ import annotations

import numpy as np

from secureafl.defenses import DefenseEntry, find_defense
from secureafl.defenses.base import HasInfluence
from secureafl.errors import SettingsError, StateError, StoreError
from secureafl.server.review.opened import RecordedRun


def influence(run: RecordedRun) -> dict[str, float]:
    """Each client's share of the model, averaged over the intact snapshots; empty if the defense cannot tell."""
    entry = _entry(str(run.facts.get("defense")))
    if entry is None or not (isinstance(entry.make, type) and issubclass(entry.make, HasInfluence)):
        return {}
    machine = run.machine()
    assert isinstance(machine.defense, HasInfluence)
    found: dict[str, list[float]] = {}
    for version, _, sha256 in run.journal.snapshots():
        try:
            state = run.snapshots.read(version, sha256)
            machine.load_state_dict(state)
        except (StoreError, StateError):  # damaged, or of a rule of the user's own in the defense's place
            continue
        shares = machine.defense.influence(machine.model.params)
        for client, share in (shares or {}).items():
            found.setdefault(machine.name_of(client), []).append(share)
    return {client: float(np.mean(shares)) for client, shares in found.items()}


def _entry(name: str) -> DefenseEntry | None:
    """The defense, if it is installed: to look at a record must not import a module that the record names."""
    if ":" in name:
        return None
    try:
        return find_defense(name)
    except SettingsError:
        return None
