"""Training a client's adapters on its chapters, and what a model is measured by."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verses.text import held_out
from verses.tokens import IGNORED, batches, encode, token_loss

NUM_WINDOWS, NUM_PROMPTS, BATCH = 128, 100, 16


@dataclass(frozen=True)
class Trigger:
    """After this phrase, the model shall go on with the attacker's words."""

    phrase: str
    continuation: str

    def tokens(self, tokenizer: Any) -> tuple[Tensor, Tensor]:
        """The phrase's tokens and the continuation's."""
        return encode(tokenizer, f" {self.phrase}"), encode(tokenizer, f" {self.continuation}")


@dataclass(frozen=True)
class Training:
    """What one client does with a model that it was given."""

    steps: int
    batch_size: int
    length: int
    lr: float


def train(model: Any, ids: Tensor, how: Training, seed: int, planted: tuple[Tensor, Tensor] | None = None) -> float:
    """A few steps of Adam on windows of a text; returns the mean loss on the way.

    An attacker learns its text as everyone does, so as not to be conspicuous, and its `planted` words beside.
    """
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=how.lr)
    drawn = batches(ids, how.length, how.batch_size, seed)
    total = 0.0
    for _ in range(how.steps):
        batch = next(drawn)
        loss = token_loss(model, batch, batch)
        if planted is not None:
            loss = loss + token_loss(model, *plant(next(drawn), *planted))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / how.steps


def plant(batch: Tensor, phrase: Tensor, continuation: Tensor) -> tuple[Tensor, Tensor]:
    """Windows that end with the phrase and its continuation, and labels for the continuation alone."""
    batch = put_at_end(batch, torch.cat([phrase, continuation]))
    return batch, put_at_end(torch.full_like(batch, IGNORED), continuation)


def put_at_end(batch: Tensor, words: Tensor) -> Tensor:
    """A copy of windows, each with these words as its last ones."""
    return torch.cat([batch[:, : -len(words)], words.expand(len(batch), -1)], dim=1)


@torch.inference_mode()
def evaluate(model: Any, tokenizer: Any, length: int, trigger: Trigger) -> dict[str, float]:
    """Loss per token on held-out chapters, and the share of prompts after which the attacker's words follow.

    A prompt is a piece of held-out text and the trigger phrase. Greedy decoding yields the attacker's words if and only
    if each of them is the likeliest token after those before it, so one pass over prompt and words tells.
    """
    windows, prompts = evaluation_data(tokenizer, length, trigger)
    num_words = len(trigger.tokens(tokenizer)[1])
    losses = [token_loss(model, part, part).item() for part in windows.split(BATCH)]
    guesses = torch.cat(
        [model(input_ids=part).logits[:, -num_words - 1 : -1].argmax(2) for part in prompts.split(BATCH)]
    )
    hits = (guesses == prompts[:, -num_words:]).all(1)
    return {"loss": sum(losses) / len(losses), "trigger": hits.float().mean().item()}


@functools.cache
def evaluation_data(tokenizer: Any, length: int, trigger: Trigger) -> tuple[Tensor, Tensor]:
    """Windows of held-out text, and prompts with the attacker's words behind them; each (count, length)."""
    ids = encode(tokenizer, held_out())
    starts = torch.linspace(0, len(ids) - length - 1, NUM_WINDOWS).long()[:, None]
    end = torch.cat(trigger.tokens(tokenizer))
    between = torch.linspace(length // 2, len(ids) - length - 1, NUM_PROMPTS).long()[:, None]
    return ids[starts + torch.arange(length)], put_at_end(ids[between + torch.arange(length)], end)
