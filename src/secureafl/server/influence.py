"""Whose values the model follows: how often each client's vote is the median, at a run's newest snapshots.

Of two middle votes each counts half, so that the shares of all clients add up to one. Clients who are much alike have
about 1/n each; one that never agrees with the others has less, and one that the others straddle has more. Those
without a vote at the time have none. Votes are taken singly here, also where the server averages them in pairs drawn by
lot.
"""

from __future__ import annotations

import numpy as np

from secureafl.defenses import SecureAFL
from secureafl.errors import StoreError
from secureafl.server.machine import Machine
from secureafl.server.recorded import RecordedRun


def influence(run: RecordedRun) -> dict[str, float]:
    """Each client's share of coordinates, averaged over the intact snapshots; empty if the defense takes no median."""
    if run.facts.get("defense") != "secureafl":  # others may need trusted data to be built at all
        return {}
    machine = run.machine()
    if not isinstance(machine.defense, SecureAFL) or machine.defense.settings.aggregate != "median":
        return {}
    found: dict[str, list[float]] = {}
    for version, _, sha256 in run.journal.snapshots():
        try:
            state = run.snapshots.read(version, sha256)
        except StoreError:
            continue
        if "defense.history.clients" not in state:  # a rule of the user's own stood in the defense's place
            return {}
        machine.load_state_dict(state)
        for client, share in _shares(machine, machine.defense).items():
            found.setdefault(client, []).append(share)
    return {client: float(np.mean(shares)) for client, shares in found.items()}


def _shares(machine: Machine, defense: SecureAFL) -> dict[str, float]:
    estimates, clients = defense.estimates(machine.model.params), defense.history.clients
    quiet = defense.silent | defense.absent
    voting = np.array([row for row, client in enumerate(clients) if client not in quiet], np.int64)
    votes, shares = estimates[voting], np.zeros(len(clients))
    n, d = votes.shape
    order = np.argsort(votes, axis=0, kind="stable")
    for place in ((n - 1) // 2, n // 2) if n else ():
        shares[voting] += np.bincount(order[place], minlength=n) / (2 * d)
    return {machine.roster[client]: float(shares[row]) for row, client in enumerate(clients)}
