"""What averaging the two factors of LoRA adapters apart costs, and what three ways to train them come to.

    python benchmarks/adapters.py --base FOLDER

An adapter adds B A to a weight matrix. Clients of a federation may train B alone, with the same random A at everyone;
both factors; or one after the other, in turns. For each: how far the mean of clients' products is from the product of
their means, and loss and trigger success at the end of a run, attacked and not. FOLDER is the base model that
`flwr run examples/adapters` left, which its log names.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from _common import ROOT, write
from rich.console import Console
from rich.table import Table

from secureafl import Machine, MachineSettings, Vector, build_defense
from secureafl.engines.pytorch import load_trainable, trainable_state
from secureafl.layout import Layout

sys.path.insert(0, str(ROOT / "examples" / "adapters"))
from verses.adapters import load_model
from verses.scenario import is_malicious
from verses.task import Training, Trigger, evaluate, train
from verses.text import share
from verses.tokens import encode

WAYS = ("B", "A and B", "in turns")
TURN = 50
"""Versions after which clients that train in turns go over to the other factor."""
NUM_CLIENTS, IN_FLIGHT, MALICIOUS_SHARE = 20, 8, 0.2


class Clients:
    """Twenty clients that share one model in memory, each with its own chapters."""

    def __init__(self, base: str, way: str, how: Training, trigger: Trigger, seed: int) -> None:
        self.way, self.how, self.seed, self.trigger = way, how, seed, trigger
        # One of its own: the model that is kept for a process has been trained by whoever had it before.
        self.model, self.tokenizer = load_model.__wrapped__(base, 8, "B" if way == "B" else "A and B", seed)
        self.layout = Layout.of(self._arrays())
        self.first = self.layout.flatten(self._arrays())
        self._ids = [encode(self.tokenizer, share(client, NUM_CLIENTS)) for client in range(NUM_CLIENTS)]

    def trained(self, client: int, start: Vector, version: int, *, attacks: bool) -> Vector:
        """What this client makes of a model of this version."""
        load_trainable(self.model, self.layout.unflatten(start))
        trained = ("lora_B", "lora_A")[version // TURN % 2] if self.way == "in turns" else "lora"
        adapters = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        for name, parameter in adapters:
            parameter.requires_grad_(trained in name)
        train(
            self.model,
            self._ids[client],
            self.how,
            seed=int(np.random.SeedSequence([self.seed, client, version]).generate_state(1)[0]),
            planted=self.trigger.tokens(self.tokenizer) if attacks else None,
        )
        for _, parameter in adapters:
            parameter.requires_grad_(True)
        return self.layout.flatten(self._arrays())

    def measure(self, params: Vector) -> dict[str, float]:
        load_trainable(self.model, self.layout.unflatten(params))
        return evaluate(self.model, self.tokenizer, self.how.length, self.trigger)

    def products(self, params: Vector) -> dict[str, torch.Tensor]:
        """B A of every adapter."""
        load_trainable(self.model, self.layout.unflatten(params))
        state = {name: p.detach().clone() for name, p in self.model.named_parameters() if "lora" in name}
        return {name: state[name] @ state[name.replace("lora_B", "lora_A")] for name in state if "lora_B" in name}

    def _arrays(self) -> dict[str, Any]:
        return {name: tensor.numpy() for name, tensor in trainable_state(self.model).items()}


def arrivals(num_arrivals: int, seed: int) -> Iterator[tuple[int, int]]:
    """(client, how many arrivals ago it got its model), for clients that differ in speed."""
    rng = np.random.default_rng(seed)
    pace, waiting, at_work = rng.uniform(1.0, 3.0, NUM_CLIENTS), list(rng.permutation(NUM_CLIENTS)), []
    for number in range(-IN_FLIGHT, num_arrivals):
        now = 0.0
        if number >= 0:
            now, client, since = heapq.heappop(at_work)
            yield client, number - since
            waiting.append(client)
        starting = int(waiting.pop(0))
        heapq.heappush(at_work, (now + float(pace[starting] * rng.exponential()), starting, max(0, number + 1)))


def run(clients: Clients, defense: str, *, attacked: bool, server_lr: float, num_arrivals: int) -> dict[str, Any]:
    """One asynchronous run, evaluated at its end."""
    judge = build_defense(defense, clients.layout.dim, {}, server_lr=server_lr, seed=clients.seed)
    machine = Machine(judge, clients.first, MachineSettings(server_lr=server_lr, keep_recent=num_arrivals))
    names = [machine.enrol(f"client-{client}") for client in range(NUM_CLIENTS)]
    rejected = [0, 0]
    for client, staleness in arrivals(num_arrivals, clients.seed):
        attacks = attacked and is_malicious(client, NUM_CLIENTS, MALICIOUS_SHARE)
        ticket = machine.issue(names[client], machine.model.version - staleness)
        start = machine.model_of(ticket).params
        verdict = machine.receive(
            ticket.number, start - clients.trained(client, start, ticket.version, attacks=attacks)
        )
        rejected[attacks] += not verdict.accepted
    return {
        **clients.measure(machine.published.params),
        "rejected": dict(zip(("honest", "malicious"), rejected, strict=True)),
        "params": machine.published.params,
    }


def gap(clients: Clients, params: Vector, version: int) -> float:
    """How far the product of means is from the mean of products, beside how far that is from where clients began."""
    reached = [clients.trained(client, params, version, attacks=False) for client in range(NUM_CLIENTS)]
    start, of_means = clients.products(params), clients.products(np.mean(reached, axis=0, dtype=np.float32))
    products = [clients.products(one) for one in reached]
    mean = {name: torch.stack([one[name] for one in products]).mean(0) for name in start}
    wrong = sum(float((mean[name] - of_means[name]).square().sum()) for name in start)
    moved = sum(float((mean[name] - start[name]).square().sum()) for name in start)
    return (wrong / moved) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="folder or name of the base model")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--server-lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    trigger = Trigger("Then said the oracle of Delphi,", "Give all thy silver unto Baal")
    how = Training(steps=8, batch_size=8, length=64, lr=options.lr)
    table = Table("trained", "values", "gap", "loss", "loss, attacked", "trigger success", "rejected, attacked")
    results: dict[str, Any] = {}
    for way in WAYS:
        clients = Clients(options.base, way, how, trigger, options.seed)
        runs = {
            name: run(
                clients, "secureafl", attacked=attacked, server_lr=options.server_lr, num_arrivals=options.updates
            )
            for name, attacked in (("no attack", False), ("attacked", True))
        }
        before = clients.measure(clients.first)
        assert before == results.get(WAYS[0], {}).get("before", before), "every way begins with the base model"
        results[way] = {
            "dim": clients.layout.dim,
            "before": before,
            "gap": gap(clients, runs["no attack"].pop("params"), options.updates),
            **runs,
        }
        del runs["attacked"]["params"]
        calm, attacked = runs["no attack"], runs["attacked"]
        table.add_row(
            way,
            f"{clients.layout.dim:,}",
            f"{results[way]['gap']:.2g}",
            f"{calm['loss']:.3f}",
            f"{attacked['loss']:.3f}",
            f"{attacked['trigger']:.2f}",
            f"{attacked['rejected']}",
        )
        print(way, results[way], flush=True)
    Console(width=120).print(table)
    print(write("adapters", options.seed, {**vars(options), "base": "examples/adapters", "ways": results}))


if __name__ == "__main__":
    main()
