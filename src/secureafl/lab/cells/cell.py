"""The settings of one experiment: a cell of a table. Two cells with equal settings have equal results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from secureafl.defenses import DEFENSES, find_defense
from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.lab.attacks import ATTACKS, find_attack
from secureafl.lab.cells.earlier_names import first_spelling
from secureafl.lab.data.catalogue import DATASETS
from secureafl.lab.data.partition import find_partition
from secureafl.lab.simulation.protocols import VirtualTimeSettings
from secureafl.lab.simulation.regions import RegionsSettings
from secureafl.plugins import MAIN, find_own, source_digest, source_file
from secureafl.settings import Settings, nearest
from secureafl.wire import Wire

PAPER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "fashion-mnist": {"architecture": "cnn", "num_clients": 50, "batch_size": 32, "rounds": 20_000},
    "cifar10": {"architecture": "resnet20", "num_clients": 50, "batch_size": 64, "rounds": 30_000},
    "cifar100": {"architecture": "resnet20", "num_clients": 50, "batch_size": 64, "rounds": 30_000},
    "tiny-imagenet": {"architecture": "resnet20", "num_clients": 10, "batch_size": 64, "rounds": 80_000},
    "udacity": {
        "architecture": "resnet20",
        "num_clients": 10,
        "batch_size": 64,
        "rounds": 20_000,
        "partition": "time-blocks",
    },
}
"""What the paper sets per data set."""

DATASET_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **PAPER_DEFAULTS,
    "king-james": {
        "architecture": "char-mlp",
        "num_clients": 50,
        "batch_size": 32,
        "rounds": 5_000,
        "server_lr": 0.1,
        "partition": "time-blocks",
        "target_label": 25,
    },
}
"""The same, and ours for the sets that the paper does not have; a cell that says nothing else gets these.

On `king-james` each client has a stretch of the text: a book or a few. A backdoor's target is z. A trigger covers the
last four characters, so a model without a backdoor predicts nearly always the same letter after it, and hardly ever z.
"""

ATTACK_DEFAULTS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("fashion-mnist", "threedfed"): {
        "num_rows": 8,
        "mask_std": 0.05,
        "indicator_fallback": 1e-2,
        "reject_threshold": 1e-4,
    }
}
"""What the authors of an attack set for images like these, where it differs from their other values."""

MIN_EVALUATE_EVERY = 50
"""A short run would otherwise spend most of its time on evaluations."""

NOT_THE_RESULT = {"source"}
"""Settings that say where something is found, not what comes out: no part of a cell's identity."""

OF_MINORITY = ("minority_share", "minority_class")
"""Settings of one partition, no part of the others' identity: cells that were run before it existed keep theirs."""


OF_LOCAL_TRAINING = ("local_steps", "local_lr")
"""The same of clients that train for several steps."""

OF_PRIVACY = ("epsilon", "sample_norm")
"""The same of clients that add noise for their privacy."""

OFF_BY_DEFAULT: Mapping[str, Any] = {
    "max_votes": 1000,
    "max_seats": None,
    "sketch_dtype": "float32",
    "sketch_seed": None,
}
"""The same of a defense's settings, while they have these values."""


class CellSettings(Settings):
    """One run: the task, the attack and the defense. [P] marks the paper's values, [A] ours.

    Defaults are those of Fashion-MNIST; another data set brings its own from `DATASET_DEFAULTS`.
    """

    dataset: str = "fashion-mnist"
    """Which data set; it brings defaults of architecture, num_clients, batch_size, rounds and others."""
    source: str | None = None
    """Where its files are; None looks at the environment and then at the Hugging Face hub."""
    labels: Literal["fine", "coarse"] = "fine"
    """CIFAR-100 only: the 100 classes or their 20 groups."""
    architecture: str = "cnn"
    """The model: the paper's CNN for Fashion-MNIST, ResNet-20 for the rest [P], and a network for characters for
    King James. [A]"""
    num_clients: int = Field(50, ge=1)
    """All clients: 50, or 10 for Tiny-ImageNet and Udacity. [P]"""
    malicious_fraction: float = Field(0.2, ge=0.0, lt=1.0)
    """Share of clients that attack; without an attack they are honest like the others. [P]"""
    attack: str = "none"
    """What they do, from the first round on; `module:Name` for an attack of your own."""
    attack_settings: dict[str, Any] = Field(default_factory=dict)
    """The attack's own settings."""
    defense: str = "secureafl"
    """Which defense judges arrivals; `secureafl defenses` lists them. `module:Name` for one of your own."""
    defense_settings: dict[str, Any] = Field(default_factory=dict)
    """The defense's own settings; what they leave open follows from this cell."""
    rounds: int = Field(20_000, ge=1)
    """Arrivals: 20,000, 30,000 for CIFAR, 80,000 for Tiny-ImageNet [P], and 5,000 for King James. [A]"""
    seed: int = Field(0, ge=0)
    """All randomness follows from it."""
    protocol: Literal["paper", "virtual-time", "regions"] = "paper"
    """Who arrives next: drawn as in the paper, or by virtual clocks. `regions`: drawn as in the paper, and each region
    of clients has a server of its own, which is a client of one above."""
    protocol_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the virtual clocks, or of the regions."""
    max_delay: int = Field(10, ge=0)
    """`paper`, `regions`: the oldest version a client may answer for; of its region's model, if there are regions.
    [P]"""
    max_staleness: int | None = Field(None, ge=0)
    """`virtual-time`: answers to older versions are refused; None takes them all. [A]"""
    batch_size: int = Field(32, ge=1)
    """Samples per update: 32, or 64 for the paper's other sets. [P]"""
    local_steps: int = Field(1, ge=1)
    """Mini-batches that a client trains on before it sends how far it came; with 1 it sends the gradient. [P: 1]"""
    local_lr: float = Field(0.01, gt=0.0)
    """`local_steps` above 1: the clients' learning rate. Their updates are as long as their way, so `server_lr` is
    between 1 / (usual staleness) and 1 then. [A]"""
    server_lr: float = Field(0.01, gt=0.0)
    """The server's learning rate: 0.01 [P], and 0.1 for King James. [A]"""
    wire: Wire = "float32"
    """How updates and models travel: `float32`, or rounded to `bfloat16`; or updates to `int8` and models to bfloat16.
    Clients add what rounding took from an update to the next one. [A]"""
    epsilon: float | None = Field(None, gt=0.0)
    """What the updates of an honest client may give away of any one of its samples, with a chance of 1e-5 that it is
    more: noise is added to them for that. Samples come into a batch by lot, `batch_size` on average. None for no such
    noise. [A]"""
    sample_norm: float = Field(1.0, gt=0.0)
    """`epsilon`: the length that each sample's gradient is cut to. [A]"""
    average_over: int = Field(200, ge=1)
    """Versions that the published model is averaged over; the newest alone is evaluated too. [A]"""
    partition: str = "paper"
    """How data are dealt to clients: `paper`, `dirichlet`, `iid`, `time-blocks` or `minority`. [P: by class groups;
    Udacity, and so King James, in stretches] `minority`: a few clients hold all samples of one class and no others;
    they are honest, and the rest share the other classes at random. [A] `module:function` for one of your own: it
    takes labels, num_clients and rng, and returns row numbers, one array per client."""
    non_iid: float = Field(0.5, gt=0.0, le=1.0)
    """`paper`: chance that a sample goes to its class's own group of clients. [P]"""
    dirichlet_alpha: float = Field(0.5, gt=0.0)
    """`dirichlet`: the smaller, the more unlike the clients. [A]"""
    minority_share: float = Field(0.1, gt=0.0, lt=1.0)
    """`minority`: share of clients that hold the class. They are the last ones by number. [A]"""
    minority_class: int | None = Field(None, ge=0)
    """`minority`: which class; None for the last. [A]"""
    num_trusted: int = Field(100, ge=1)
    """Clean samples at the server, drawn from all clients' data, for defenses that need some. [P]"""
    target_label: int = Field(0, ge=0)
    """What a backdoor wants marked images to be taken for: the first class, and 25, a z, for King James. [A]"""
    evaluate_every: int = Field(1000, ge=1)
    """Rounds between two evaluations; by default a twentieth of all rounds, and 50 at least. [A]"""
    num_test: int | None = Field(None, ge=1)
    """Evaluate on the first so many test images only; None for all. [A]"""
    num_estimated: int = Field(0, ge=0)
    """Honest clients whose estimates are compared with their true gradients at each evaluation (SecureAFL only). [A]"""

    @model_validator(mode="before")
    @classmethod
    def _dataset_defaults(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name = data.get("dataset", "fashion-mnist")
        if name not in DATASETS:
            raise UnknownSettingError(f"there is no data set {name!r}; {nearest(str(name), list(DATASETS))}")
        filled = {**DATASET_DEFAULTS.get(name, {}), **data}
        if own := ATTACK_DEFAULTS.get((name, str(filled.get("attack")))):
            filled["attack_settings"] = {**own, **filled.get("attack_settings", {})}
        rounds = filled.setdefault("rounds", cls.model_fields["rounds"].default)
        filled.setdefault("evaluate_every", max(MIN_EVALUATE_EVERY, int(rounds) // 20))
        return filled

    @model_validator(mode="after")
    def _names_exist(self) -> CellSettings:
        find_defense(self.defense)
        attack = find_attack(self.attack) if self.attack != "none" else None
        find_partition(self.partition)
        if self.attack != "none" and self.num_malicious == 0:
            raise SettingsError(
                f"malicious_fraction = {self.malicious_fraction} of {self.num_clients} clients leaves no one to attack"
            )
        if self.num_classes is None and attack is not None and attack.needs_classes:
            raise SettingsError(f"attack {self.attack!r} needs classes; {self.dataset} is a regression")
        if self.protocol == "paper" and self.protocol_settings:
            raise SettingsError(f"protocol 'paper' has no settings; found {', '.join(self.protocol_settings)}")
        self._check_minority()
        if self.protocol == "regions":
            self._check_regions()
        if self.local_steps == 1 and self.local_lr != type(self).model_fields["local_lr"].default:
            raise SettingsError(f"local_lr = {self.local_lr} does nothing: set local_steps to more than 1")
        if self.epsilon is not None and self.local_steps > 1:
            raise SettingsError("private clients send one gradient each: leave epsilon or local_steps out")
        self.complete()  # a misspelt setting of a defense is found here, not hours later
        return self

    @property
    def num_malicious(self) -> int:
        """How many clients attack."""
        return round(self.malicious_fraction * self.num_clients)

    @cached_property
    def regions(self) -> RegionsSettings:
        """How clients are grouped, if `protocol` is `regions`."""
        return RegionsSettings(**self.protocol_settings)

    @property
    def minority(self) -> frozenset[int]:
        """Clients that hold the class which no one else has; nobody unless `partition` is `minority`."""
        if self.partition != "minority":
            return frozenset()
        return frozenset(range(self.num_clients - round(self.minority_share * self.num_clients), self.num_clients))

    @property
    def held_class(self) -> int | None:
        """The class that only the minority has; None without a minority."""
        if self.partition != "minority" or self.num_classes is None:
            return None
        return self.num_classes - 1 if self.minority_class is None else self.minority_class

    @property
    def num_classes(self) -> int | None:
        """Classes of the data set; None for a regression."""
        targets = DATASETS[self.dataset].targets
        if self.labels not in targets:
            raise SettingsError(f"labels = {self.labels!r}: {self.dataset} has {' and '.join(targets)} labels")
        return targets[self.labels][0]

    def complete(self) -> dict[str, Any]:
        """All settings as JSON, also those of defense, attack and protocol that were left at their defaults."""
        unused = {
            *(OF_MINORITY if self.partition != "minority" else ()),
            *(OF_LOCAL_TRAINING if self.local_steps == 1 else ()),
            *(("wire",) if self.wire == "float32" else ()),
            *(OF_PRIVACY if self.epsilon is None else ()),
        }
        values = {key: value for key, value in self.model_dump(mode="json").items() if key not in unused}
        together = self.num_clients // (self.regions.num_regions if self.protocol == "regions" else 1)
        own = self._complete(find_defense(self.defense).settings, self.defense_settings, num_first=together)
        values["defense_settings"] = _in_force(own)
        if self.attack != "none":
            values["attack_settings"] = self._complete(find_attack(self.attack).settings, self.attack_settings)
        if self.protocol == "virtual-time":
            values["protocol_settings"] = self._complete(VirtualTimeSettings, self.protocol_settings)
        if self.protocol == "regions":
            top = self._complete(
                find_defense(self.regions.top_defense).settings,
                self.regions.top_defense_settings,
                num_first=self.regions.num_regions,
            )
            values["protocol_settings"] = {
                **self.regions.model_dump(mode="json"),
                "top_defense_settings": _in_force(top),
            }
        return values

    def cell_id(self) -> str:
        """A readable name, unique to these settings and the user's own code: the cell's directory."""
        decisive = {key: value for key, value in self.complete().items() if key not in NOT_THE_RESULT}
        if code := self.code():
            decisive["code"] = code
        digest = hashlib.sha256(json.dumps(first_spelling(decisive), sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.dataset}-{self.defense}-{self.attack}-{digest}".replace(":", ".")  # no colon: it is a folder

    def code(self) -> dict[str, str]:
        """SHA-256 of the files with the user's own defense, attack and partition, by name: who changes one of them has
        another cell. What these files import is not looked at.
        """
        return {name: source_digest(found) for name, found in self._own().items()}

    def typed(self) -> list[str]:
        """Which of the user's own code this process alone has, because it was typed into a notebook or a script."""
        return [name for name in self._own() if name.startswith(f"{MAIN}:")]

    @property
    def has_changed_unseen(self) -> bool:
        """Whether the user's own code may be other than it was: it has no file, and may call what was typed anew."""
        return any(source_file(found) is None for found in self._own().values())

    def _own(self) -> dict[str, object]:
        """The user's own code by name."""
        own: dict[str, object] = {}
        if self.defense not in DEFENSES:
            own[self.defense] = find_own("defense", self.defense, DEFENSES)
        if self.attack != "none" and self.attack not in ATTACKS:
            own[self.attack] = find_own("attack", self.attack, ATTACKS)
        if (partition := find_partition(self.partition)) is not None:
            own[self.partition] = partition
        return {name: getattr(found, "make", found) for name, found in own.items()}

    def _check_minority(self) -> None:
        """Whether there is a class to hold, someone to hold it, and enough others to attack."""
        if self.partition != "minority":
            for name in OF_MINORITY:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise SettingsError(f"{name} = {getattr(self, name)} does nothing: set partition = 'minority'")
            return
        if self.num_classes is None:
            raise SettingsError(f"partition = 'minority' deals by class; {self.dataset} has none")
        if self.minority_class is not None and self.minority_class >= self.num_classes:
            raise SettingsError(f"minority_class = {self.minority_class}: classes run from 0 to {self.num_classes - 1}")
        holders, others = len(self.minority), self.num_clients - len(self.minority)
        if holders == 0 or others == 0:
            raise SettingsError(
                f"minority_share = {self.minority_share} of {self.num_clients} clients are {holders}: some must hold "
                "the class, and some must not"
            )
        if self.attack != "none" and self.num_malicious > others:
            raise SettingsError(
                f"malicious_fraction = {self.malicious_fraction} of {self.num_clients} clients are "
                f"{self.num_malicious}, and only {others} are outside the minority, which is honest"
            )

    def _check_regions(self) -> None:
        """Whether the regions are of equal size, have room for the malicious, and need nothing that there is once."""
        own = self.regions
        if self.num_clients % own.num_regions:
            raise SettingsError(
                f"num_clients = {self.num_clients} is no multiple of num_regions = {own.num_regions}: regions are of"
                " equal size"
            )
        if own.malicious_regions is not None:
            room = own.malicious_regions * self.num_clients // own.num_regions
            if own.malicious_regions > own.num_regions or self.num_malicious > room:
                raise SettingsError(
                    f"malicious_regions = {own.malicious_regions} of {own.num_regions} have room for {room} clients,"
                    f" and {self.num_malicious} are malicious"
                )
        if {"reference", "score"} & set(find_defense(own.top_defense).needs):
            raise SettingsError(f"top_defense = {own.top_defense!r} needs trusted data, which the top has none of")
        if self.attack != "none" and find_attack(self.attack).needs_shadow:
            raise SettingsError(f"attack {self.attack!r} replicates one server; with regions there are many")

    def _complete(self, cls: type[Settings], given: Mapping[str, Any], num_first: int | None = None) -> dict[str, Any]:
        """The settings of a part. What the cell knows already, every defense is told, as the paper's server is."""
        facts = {
            "malicious_fraction": self.malicious_fraction,
            "num_classes": self.num_classes,
            "num_first": self.num_clients if num_first is None else num_first,
        }
        known = {key: value for key, value in facts.items() if key in cls.model_fields and value is not None}
        return cls(**{**known, **given}).model_dump(mode="json")

    def command(self) -> str:
        """What to type to run this cell alone."""
        given, plain = self.complete(), CellSettings(dataset=self.dataset, defense=self.defense, attack=self.attack)
        usual = plain.complete()
        if self.protocol != "paper":
            usual["protocol_settings"] = plain.model_copy(update={"protocol": self.protocol}).complete()[
                "protocol_settings"
            ]
        words = ["secureafl lab run"]
        for name in ("dataset", "defense", "attack"):
            if given[name] != CellSettings.model_fields[name].default:
                words.append(f"--{name} {given[name]}")
        if self.seed:
            words.append(f"--seed {self.seed}")
        for name, value in given.items():
            if name in {"seed", *NOT_THE_RESULT} or value == usual.get(name, type(self).model_fields[name].default):
                continue
            if isinstance(value, Mapping):
                changes = _changes(value, usual[name])
                words += [f"--set {name}.{key}={json.dumps(inner)}" for key, inner in changes.items()]
            else:
                words.append(f"--set {name}={json.dumps(value)}")
        return " ".join(words).replace('"', "")


def _changes(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the usual; settings of parts under `part.key`."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{inner}": own for inner, own in _changes(value, usual.get(key) or {}).items()}
        elif key not in usual or usual[key] != value:
            found[key] = value
    return found


def _in_force(own: Mapping[str, Any]) -> dict[str, Any]:
    """A defense's settings without those that change nothing while they are off."""
    return {key: value for key, value in own.items() if key not in OFF_BY_DEFAULT or value != OFF_BY_DEFAULT[key]}
