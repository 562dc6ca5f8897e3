"""From the settings of a cell to a simulation ready to step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secureafl.defenses import build_defense
from secureafl.errors import SettingsError
from secureafl.lab.arrays import Indices
from secureafl.lab.attacks import build_attack, find_attack
from secureafl.lab.attacks.attack import Batch, ChoosesPace, TaskView
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.recorder import Recorder
from secureafl.lab.data import Dataset, Trigger, load, partition
from secureafl.lab.simulation.local_training import LocalTraining, repeated
from secureafl.lab.simulation.private_clients import PrivateClients
from secureafl.lab.simulation.protocols import (
    ArrivalProtocol,
    Haste,
    PaperProtocol,
    VirtualTimeProtocol,
    VirtualTimeSettings,
)
from secureafl.lab.simulation.regions import TOP, Regions
from secureafl.lab.simulation.simulate import Attacker, ClientData, Simulation
from secureafl.lab.simulation.task import Task
from secureafl.lab.simulation.trusted_data import draw_trusted, make_reference, make_scorer
from secureafl.lab.streams import stream
from secureafl.server import Machine, MachineSettings
from secureafl.types import ClientId


@dataclass(frozen=True, slots=True, eq=False)
class Laboratory:
    """One cell, set up: the simulation, and what an evaluation needs beside it."""

    settings: CellSettings
    dataset: Dataset
    task: Task
    trigger: Trigger
    malicious: frozenset[ClientId]
    simulation: Simulation
    recorder: Recorder | None


def build(
    settings: CellSettings,
    clock: Callable[[], float] = time.perf_counter,
    record: Path | None = None,
    device: str = "cpu",
) -> Laboratory:
    """Load the data, deal them, and put clients, attackers and server in their places.

    record  folder for a journal of the run, as a deployed federation keeps one
    device  where gradients are computed
    """
    dataset = load(settings.dataset, settings.source, settings.labels)
    task = Task(settings.architecture, dataset.num_classes, dataset.image_shape, device=device)
    shards = deal(settings, dataset)
    malicious = draw_malicious(settings)
    trigger = Trigger.draw(dataset.image_shape[0], stream(settings.seed, "trigger"))
    data = ClientData(dataset.train_x, dataset.train_y, shards, settings.batch_size * settings.local_steps)
    trained = task if settings.local_steps == 1 else LocalTraining(task, settings.local_steps, settings.local_lr)
    attacker = make_attacker(settings, malicious, trigger)
    protocol = make_protocol(settings, haste_of(attacker))
    private = make_private(settings, task, shards)
    machine = make_server(settings, task, trained, data, protocol)
    recorder = make_recorder(machine, settings, record) if record is not None else None
    simulation = Simulation(
        task=trained,
        data=data,
        machine=machine,
        server=recorder,
        protocol=protocol,
        seed=settings.seed,
        attacker=attacker,
        wire=settings.wire,
        private=private,
        clock=clock,
    )
    return Laboratory(settings, dataset, task, trigger, malicious, simulation, recorder)


def make_private(settings: CellSettings, task: Task, shards: Sequence[Indices]) -> PrivateClients | None:
    """Honest clients that add noise to what they send; None if they add none."""
    if settings.epsilon is None:
        return None
    return PrivateClients(
        task,
        shards,
        epsilon=settings.epsilon,
        sample_norm=settings.sample_norm,
        batch_size=settings.batch_size,
        rounds=settings.rounds,
    )


def deal(settings: CellSettings, dataset: Dataset) -> list[Indices]:
    """Each client's samples."""
    rng, labels, num_clients = stream(settings.seed, "partition"), dataset.train_y, settings.num_clients
    if (own := partition.find_partition(settings.partition)) is not None:
        return partition.checked(settings.partition, own(labels, num_clients, rng), num_clients, len(labels))
    if settings.partition == "iid":
        return partition.iid(len(labels), num_clients, rng)
    if settings.partition == "time-blocks":
        return partition.time_blocks(len(labels), num_clients)
    if dataset.num_classes is None:
        raise SettingsError(f"partition = {settings.partition!r} deals by class; {settings.dataset} has none")
    classes = np.asarray(labels, np.int64)
    if settings.held_class is not None:
        num_holders = len(settings.minority)
        return partition.minority(classes, num_clients, dataset.num_classes, settings.held_class, num_holders, rng)
    if settings.partition == "dirichlet":
        return partition.dirichlet(classes, num_clients, dataset.num_classes, settings.dirichlet_alpha, rng)
    return partition.fang(classes, num_clients, dataset.num_classes, settings.non_iid, rng)


def draw_malicious(settings: CellSettings) -> frozenset[ClientId]:
    """Who attacks: the first of one shuffled order, so that a larger share adds attackers and exchanges none.

    The few who hold a class alone are passed over: whether they are learned is what such a run is about.
    """
    order = stream(settings.seed, "malicious-set").permutation(settings.num_clients).tolist()
    eligible = [ClientId(client) for client in order if client not in settings.minority]
    if settings.protocol == "regions":
        return draw_by_region(settings, eligible)
    return frozenset(eligible[: settings.num_malicious])


def draw_by_region(settings: CellSettings, order: Sequence[ClientId]) -> frozenset[ClientId]:
    """The same, equally many in each of the regions that have any: those of the first clients in the order."""
    each = settings.num_clients // settings.regions.num_regions
    queues: dict[int, list[ClientId]] = {}
    for client in order:
        queues.setdefault(client // each, []).append(client)
    chosen = list(queues.values())[: settings.regions.malicious_regions]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*chosen))
    return frozenset(itertools.islice((client for client in turns if client is not None), settings.num_malicious))


def haste_of(attacker: Attacker | None) -> Haste | None:
    """Who answers sooner than others do, if the attack has them do so."""
    if attacker is None or not isinstance(attacker.attack, ChoosesPace):
        return None
    return Haste(attacker.malicious, attacker.attack.job_duration)


def make_protocol(settings: CellSettings, haste: Haste | None = None) -> ArrivalProtocol:
    if settings.protocol in {"paper", "regions"}:
        return PaperProtocol(settings.num_clients, settings.max_delay, settings.seed, haste)
    clocks = VirtualTimeSettings(**settings.protocol_settings)
    return VirtualTimeProtocol(settings.num_clients, clocks, settings.seed, haste)


def make_server(
    settings: CellSettings, task: Task, trained: TaskView, data: ClientData, protocol: ArrivalProtocol
) -> Machine | Regions:
    """The server, or one for each region and one above them."""
    if settings.protocol != "regions":
        return make_machine(settings, task, trained, data, protocol)
    own = settings.regions
    each = settings.num_clients // own.num_regions
    regions = [make_machine(settings, task, trained, data, protocol, place) for place in range(own.num_regions)]
    defense = build_defense(
        own.top_defense,
        task.dim,
        settings.complete()["protocol_settings"]["top_defense_settings"],
        server_lr=own.top_lr,
        seed=settings.seed,
    )
    above = MachineSettings(server_lr=own.top_lr, average_over=settings.average_over, count_refused=True)
    return Regions(Machine(defense, task.initial(settings.seed), above), regions, each, own.report_every)


def make_recorder(machine: Machine | Regions, settings: CellSettings, record: Path) -> Recorder:
    if isinstance(machine, Regions):
        raise SettingsError("a cell with regions has many servers, and no one journal: leave --record out")
    return Recorder(machine, settings, record)


def make_machine(
    settings: CellSettings,
    task: Task,
    trained: TaskView,
    data: ClientData,
    protocol: ArrivalProtocol,
    region: int | None = None,
) -> Machine:
    """The server, with trusted data if its defense needs some: it trains on them as clients do, with `trained`."""
    indices = draw_trusted(data.shards, settings.num_trusted, stream(settings.seed, "trusted"))
    trusted = Batch(data.x[indices], data.y[indices])
    lessons = trusted if settings.local_steps == 1 else data.batch(repeated(indices, data.batch_size))
    defense = build_defense(
        settings.defense,
        task.dim,
        settings.complete()["defense_settings"],
        server_lr=settings.server_lr,
        seed=settings.seed if region is None else settings.seed * settings.regions.num_regions + region,
        reference=make_reference(trained, lessons),
        score=make_scorer(task, trusted),
    )
    staleness = settings.max_staleness if settings.protocol == "virtual-time" else None
    machine = MachineSettings(
        server_lr=settings.server_lr,
        max_staleness=staleness,
        keep_recent=protocol.keep_recent,
        average_over=settings.average_over,
        upstream=TOP if region is not None else None,
        count_refused=True,  # a round of the paper is any update
    )
    return Machine(defense, task.initial(settings.seed), machine)


def make_attacker(settings: CellSettings, malicious: frozenset[ClientId], trigger: Trigger) -> Attacker | None:
    if settings.attack == "none":
        return None
    attack = build_attack(settings.attack, settings.attack_settings)
    return Attacker(attack, malicious, trigger, settings.target_label, find_attack(settings.attack).needs_shadow)
