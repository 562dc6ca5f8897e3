"""The clients of the soak, in virtual hours: how fast they are, what they send, who comes, goes and attacks when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import save
from tests.end_to_end.soak_wire import ARRAY, digest
from tests.support import Quadratic

from secureafl.engines import signing
from secureafl.files import write_atomically
from secureafl.types import Vector

DAY = 24.0
SCALES = {"sign flip": -10.0, "flood": -1.0}
"""Times the honest gradient."""
FLOOD_SPEED = 50.0
NUM_GARBAGE = 5


class Sends(StrEnum):
    """What an update holds."""

    HONEST = "honest"
    FLIPPED = "sign flip"
    FLOOD = "flood"
    GARBAGE = "garbage"
    OLD_KEY = "old key"


@dataclass(frozen=True, slots=True)
class Attack:
    """What some clients send for some time."""

    sends: Sends
    begins: float
    ends: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens when, in virtual hours."""

    hours: float
    attacks: tuple[Attack, ...]
    disturbances: tuple[tuple[float, str], ...]
    rotations: tuple[float, ...]
    reviews: tuple[float, ...]
    quiet_from: float
    """From here on nobody attacks, and no server is disturbed."""


def week(per_day: int) -> Plan:
    """Five days with attacks and so many disturbances, and two quiet ones."""
    quiet = 5 * DAY
    kinds = ("killed", "stopped", "cut", "standby killed")
    times = np.linspace(8.0, quiet - 8.0, 5 * per_day)
    return Plan(
        hours=7 * DAY,
        attacks=(
            Attack(Sends.FLIPPED, 1 * DAY, 1 * DAY + 20),
            Attack(Sends.FLOOD, 2 * DAY, 2 * DAY + 20),
            Attack(Sends.GARBAGE, 3 * DAY, 3 * DAY + 20),
            Attack(Sends.FLIPPED, 4 * DAY, 4 * DAY + 20),
        ),
        disturbances=tuple((float(time), kinds[place % len(kinds)]) for place, time in enumerate(times)),
        rotations=tuple(day * DAY + 12.0 for day in range(6)),
        reviews=tuple(day * DAY + 18.0 for day in range(7)),
        quiet_from=quiet,
    )


def day(*disturbances: tuple[float, str]) -> Plan:
    """One attack, one rotation of keys, and the last third quiet."""
    return Plan(
        hours=DAY,
        attacks=(Attack(Sends.FLIPPED, 1.0, 15.0),),
        disturbances=disturbances,
        rotations=(3.0,),
        reviews=(18.0,),
        quiet_from=16.0,
    )


@dataclass(eq=False)
class Client:
    """One client. What it is doing is for whoever drives it to say."""

    name: str
    place: int
    hours: float
    """That it trains, on average."""
    key: Ed25519PrivateKey
    old_key: Ed25519PrivateKey | None = None
    """One that was replaced, as long as the client still signs with it."""
    away: bool = False
    crashed: bool = False
    num_garbage: int = 0


@dataclass
class Population:
    """All clients, and the file of their public keys."""

    problem: Quadratic
    mean_hours: float
    folder: Path
    rng: np.random.Generator
    clients: dict[str, Client] = field(init=False)

    def __post_init__(self) -> None:
        self.keys_file = self.folder / "keys.toml"
        self._public: dict[str, str] = {}
        self._num_keys = 0
        # Speeds differ tenfold and more; together the clients are as fast as clients of equal speed would be.
        slowness = self.rng.lognormal(0.0, 0.6, self.problem.num_clients)
        slowness *= float(np.mean(1.0 / slowness))
        self.clients = {}
        for place in range(self.problem.num_clients):
            name = f"client-{place}"
            hours = self.mean_hours * float(slowness[place])
            self.clients[name] = Client(name, place, hours, self._new_key(name))
        self._publish()

    def _new_key(self, name: str) -> Ed25519PrivateKey:
        self._num_keys += 1
        path = self.folder / f"key-{self._num_keys}.pem"
        self._public[name] = signing.write_key_pair(path)
        return signing.read_private_key(path)

    def _publish(self) -> None:
        write_atomically(self.keys_file, "".join(f'{name} = "{key}"\n' for name, key in self._public.items()).encode())

    def present(self) -> list[str]:
        return [client.name for client in self.clients.values() if not client.away]

    def attackers(self, sends: Sends) -> range:
        """The places of those who attack so: a fifth, one client, or a few."""
        fifth = self.problem.num_clients // 5
        if sends is Sends.FLIPPED:
            return range(fifth)
        return range(fifth, fifth + 1) if sends is Sends.FLOOD else range(fifth + 1, fifth + 1 + NUM_GARBAGE)

    def honest(self) -> Iterator[Client]:
        """Those who never attack."""
        last = self.attackers(Sends.GARBAGE).stop
        return (client for client in self.clients.values() if client.place >= last)

    def rotate(self, share: float = 0.1) -> Client:
        """New keys for some honest clients, in force at once. One of them goes on with its old key."""
        candidates = [client for client in self.honest() if client.old_key is None and not client.away]
        chosen = self.rng.choice(len(candidates), max(1, round(share * len(candidates))), replace=False)
        some = [candidates[place] for place in chosen]
        stubborn: Client = some[0]
        stubborn.old_key = stubborn.key
        for client in some:
            client.key = self._new_key(client.name)
        self._publish()
        return stubborn

    def sends(self, client: Client, attacks: tuple[Attack, ...], hour: float) -> Sends:
        """What this client sends now."""
        if client.old_key is not None:
            return Sends.OLD_KEY
        for attack in attacks:
            if attack.begins <= hour < attack.ends and client.place in self.attackers(attack.sends):
                return attack.sends
        return Sends.HONEST

    def training_hours(self, client: Client, sends: Sends) -> float:
        drawn = client.hours * float(self.rng.gamma(4.0, 0.25))
        return drawn / FLOOD_SPEED if sends is Sends.FLOOD else drawn

    def update(self, client: Client, sends: Sends, params: Vector, nonce: bytes, version: int) -> tuple[bytes, bytes]:
        """What it sends, and its signature."""
        delta = self.problem.noisy_gradient(client.place, params, self.rng)
        delta *= np.float32(SCALES.get(sends, 1.0))
        body = save({ARRAY: delta})
        if sends is Sends.GARBAGE:
            body = self._garbage(client, delta)
        key = client.key if client.old_key is None else client.old_key
        return body, signing.sign(key, nonce, version, digest(body))

    def _garbage(self, client: Client, delta: Vector) -> bytes:
        client.num_garbage += 1
        kinds = (
            lambda: self.rng.bytes(1000),
            lambda: save({ARRAY: np.full_like(delta, np.nan)}),
            lambda: save({ARRAY: delta[:-1]}),
            lambda: save({"another": delta}),
            lambda: bytes(100 * delta.nbytes),
        )
        return kinds[client.num_garbage % len(kinds)]()
