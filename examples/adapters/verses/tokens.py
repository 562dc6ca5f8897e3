"""Text as tokens: encoding, windows, and the loss of a model on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = -100
"""The label of a token that is not learned from."""


def encode(tokenizer: Any, text: str) -> Tensor:
    """(count,) the tokens of a text."""
    return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def batches(ids: Tensor, length: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Windows of a text, drawn without end: (batch_size, length)."""
    rng = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(ids) - length, (batch_size, 1), generator=rng)
        yield ids[starts + torch.arange(length)]


def token_loss(model: Any, batch: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the tokens that are labelled, each given those before it."""
    logits = model(input_ids=batch).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
