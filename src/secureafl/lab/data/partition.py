"""How a training set is dealt to clients. Every sample goes to exactly one client.

`fang` is the paper's scheme, after M. Fang, X. Cao, J. Jia and N. Z. Gong, "Local Model Poisoning Attacks to
Byzantine-Robust Federated Learning", USENIX Security 2020: the clients are shuffled into z near-equal groups, and a
sample of class q goes to group q with probability x, to each other group with probability (1 - x) / (z - 1), then to a
uniformly drawn client of that group.

Departure: with more classes than clients there are not enough groups, so Z = min(z, n) of them are made and class q is
at home in group q mod Z.

`minority` is ours: a few clients hold all samples of one class and nothing else, and the others share the rest. Whoever
leaves out these clients leaves out their class.

A function of the user's own takes the labels, the number of clients and a generator; it is called `module:function`.

All functions return one sorted array of row numbers per client, and draw only from the generator they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.lab.arrays import Indices, Labels
from secureafl.plugins import load_object
from secureafl.settings import nearest

PARTITIONS = ("paper", "dirichlet", "iid", "time-blocks", "minority")
"""The laboratory's own, by name."""

OwnPartition: TypeAlias = Callable[[Labels, int, np.random.Generator], Sequence[Indices]]
"""Deals rows with these labels to so many clients."""

_MAX_DIRICHLET_DRAWS = 100


def fang(
    labels: npt.NDArray[np.int64],
    num_clients: int,
    num_classes: int,
    home_probability: float,
    rng: np.random.Generator,
) -> list[Indices]:
    """The paper's non-IID partition; a larger `home_probability` x is further from IID, and x = 1/Z is IID."""
    _check_labels(labels, num_classes)
    _check_clients(num_clients, len(labels))
    if not 0 <= home_probability <= 1:
        raise SettingsError(f"home_probability = {home_probability}: a probability lies in [0, 1]")
    groups = client_groups(num_clients, num_classes, rng)
    num_groups = len(groups)
    home = labels % num_groups
    at_home = rng.random(len(labels)) < home_probability
    # Every other group is equally likely: (1 - x) / (Z - 1). One group alone is everyone's home.
    elsewhere = (home + rng.integers(1, num_groups, len(labels))) % num_groups if num_groups > 1 else home
    group = np.where(at_home, home, elsewhere)
    sizes = np.array([len(members) for members in groups])
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    members = np.concatenate(groups)
    return _deal(members[first[group] + rng.integers(0, sizes[group])], num_clients)


def client_groups(num_clients: int, num_classes: int, rng: np.random.Generator) -> list[Indices]:
    """The clients, shuffled into Z = min(z, n) groups whose sizes differ by at most one."""
    return np.array_split(rng.permutation(num_clients), min(num_classes, num_clients))


def iid(num_samples: int, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """A random deal into parts whose sizes differ by at most one."""
    _check_clients(num_clients, num_samples)
    return [np.sort(part) for part in np.array_split(rng.permutation(num_samples), num_clients)]


def dirichlet(
    labels: npt.NDArray[np.int64],
    num_clients: int,
    num_classes: int,
    concentration: float,
    rng: np.random.Generator,
    min_size: int = 1,
) -> list[Indices]:
    """Each class is divided among the clients by proportions from a symmetric Dirichlet distribution.

    A small `concentration` gives each class to few clients. A deal that leaves a client with fewer than `min_size`
    samples is drawn again; after a hundred of them the settings are called impossible.
    """
    _check_labels(labels, num_classes)
    _check_clients(num_clients, len(labels))
    if concentration <= 0:
        raise SettingsError(f"concentration = {concentration}: it must be above 0")
    for _ in range(_MAX_DIRICHLET_DRAWS):
        owner = np.empty(len(labels), np.int64)
        for label in range(num_classes):
            rows = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(num_clients, concentration))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
            for client, part in enumerate(np.split(rows, cuts)):
                owner[part] = client
        if np.bincount(owner, minlength=num_clients).min() >= min_size:
            return _deal(owner, num_clients)
    raise SettingsError(
        f"{_MAX_DIRICHLET_DRAWS} Dirichlet deals of {len(labels)} samples to {num_clients} clients all left one with "
        f"fewer than {min_size}: raise concentration = {concentration} or lower the number of clients"
    )


def minority(
    labels: npt.NDArray[np.int64],
    num_clients: int,
    num_classes: int,
    held_class: int,
    num_holders: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """The last `num_holders` clients share the samples of `held_class`, the others all other samples, at random.

    Within either part, sizes differ by at most one.
    """
    _check_labels(labels, num_classes)
    if not 0 <= held_class < num_classes:
        raise SettingsError(f"held_class = {held_class}: classes run from 0 to {num_classes - 1}")
    if not 1 <= num_holders < num_clients:
        raise SettingsError(f"num_holders = {num_holders}: 1 to {num_clients - 1} of {num_clients} clients can be few")
    held, others = (rng.permutation(np.flatnonzero(mine)) for mine in (labels == held_class, labels != held_class))
    _check_clients(num_holders, len(held))
    _check_clients(num_clients - num_holders, len(others))
    parts = [*np.array_split(others, num_clients - num_holders), *np.array_split(held, num_holders)]
    return [np.sort(part) for part in parts]


def time_blocks(num_samples: int, num_clients: int) -> list[Indices]:
    """Stretches of consecutive samples, sizes differing by at most one: what one driver saw, for data in time order."""
    _check_clients(num_clients, num_samples)
    return np.array_split(np.arange(num_samples), num_clients)


def find_partition(name: str) -> OwnPartition | None:
    """The user's function called `module:function`; None for a partition of the laboratory."""
    if name in PARTITIONS:
        return None
    if ":" not in name:
        raise UnknownSettingError(f"there is no partition {name!r}; {nearest(name, list(PARTITIONS))}")
    found = load_object(name)
    if not callable(found):
        raise SettingsError(
            f"{name} is a {type(found).__name__}, and no partition: name a function of labels, num_clients and rng"
        )
    return found  # type: ignore[no-any-return]


def checked(name: str, parts: Sequence[Indices], num_clients: int, num_samples: int) -> list[Indices]:
    """What a function of the user's own dealt, sorted; an error says what is wrong with it."""
    dealt = [np.sort(np.asarray(part)) for part in parts]
    if len(dealt) != num_clients:
        raise SettingsError(f"{name} dealt to {len(dealt)} clients; there are {num_clients}")
    for client, part in enumerate(dealt):
        if part.ndim != 1 or not np.issubdtype(part.dtype, np.integer) or not len(part):
            raise SettingsError(
                f"{name} gave client {client} an array of shape {part.shape} and type {part.dtype}; every client needs "
                "row numbers, one at least"
            )
    rows = np.concatenate(dealt)
    if rows.min() < 0 or rows.max() >= num_samples:
        raise SettingsError(f"{name} dealt row {rows.min() if rows.min() < 0 else rows.max()} of {num_samples}")
    if len(np.unique(rows)) < len(rows):
        raise SettingsError(f"{name} dealt a row twice; every sample goes to one client")
    return [part.astype(np.int64) for part in dealt]


def _deal(owner: Indices, num_clients: int) -> list[Indices]:
    """Rows by owner, ascending."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=num_clients))[:-1])


def _check_clients(num_clients: int, num_samples: int) -> None:
    if not 1 <= num_clients <= num_samples:
        raise SettingsError(f"num_clients = {num_clients}: {num_samples} samples serve 1 to {num_samples} clients")


def _check_labels(labels: npt.NDArray[np.int64], num_classes: int) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise SettingsError(
            f"labels have shape {labels.shape} and type {labels.dtype}; one class number each is needed"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise SettingsError(f"labels run from {labels.min()} to {labels.max()}; num_classes = {num_classes}")
