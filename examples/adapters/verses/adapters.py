"""LoRA adapters on a frozen base model: what is trained, sent and judged.

An adapter adds B A to a weight matrix W, with A (r, in) drawn at random and B (out, r) zero at the start. The mean of
clients' products is not the product of their means:

    mean(B_i A_i) != mean(B_i) mean(A_i)        but        mean(B_i A) = mean(B_i) A

so only B is trained, and A stays as it was drawn, from the same seed at everyone (FFA-LoRA, Sun et al., 2024).
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from verses.base import load_base

FACTORS = {"B": ("lora_B",), "A and B": ("lora_A", "lora_B")}
"""Which factors are trained, by the name that the run config gives."""


@functools.cache
def load_model(name: str, rank: int, factors: str, seed: int) -> tuple[Any, Any]:
    """The base model with adapters in all its linear layers, and its tokenizer. There is one of each in a process."""
    if factors not in FACTORS:
        raise ValueError(f'train-factors = "{factors}": write one of {", ".join(repr(known) for known in FACTORS)}')
    base, tokenizer = load_base(name)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out")  # PEFT sees that GPT-2's layers are transposed, and says so
        torch.manual_seed(seed)  # the same A at everyone
        model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(any(factor in parameter_name for factor in FACTORS[factors]))
    return model, tokenizer
