"""The base model: any causal language model of Hugging Face, or a small GPT-2 that is pre-trained here.

A small one is trained on the Old Testament and kept in a folder in Hugging Face's own format, so that everything after
it reads a model by its name and does not know where it came from.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.utils import logging

from verses.text import old_testament
from verses.tokens import batches, token_loss

logging.disable_progress_bar()
torch.set_num_threads(1)  # clients run side by side, each on a core of its own


@dataclass(frozen=True)
class Pretraining:
    """How the small model is made."""

    steps: int
    vocabulary: int
    width: int
    layers: int
    heads: int
    context: int
    batch_size: int = 32
    lr: float = 2e-3
    seed: int = 0

    @classmethod
    def read(cls, run_config: Mapping[str, Any]) -> Self:
        """The table `pretrain` of the run config; as long a context as the windows that clients train on."""
        names = ("steps", "vocabulary", "width", "layers", "heads")
        return cls(**{name: int(run_config[f"pretrain.{name}"]) for name in names}, context=int(run_config["length"]))

    def folder(self) -> Path:
        """Where this model is kept, beside Flower's own files: another one for other settings or another text."""
        key = hashlib.sha256(json.dumps([asdict(self), old_testament()]).encode()).hexdigest()
        return Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / "secureafl-adapters" / key[:12]


def find_base(named: str, pretraining: Pretraining) -> str:
    """The name or folder of the base model. The server pre-trains before it asks any client for anything."""
    folder = pretraining.folder()
    if not named and not folder.is_dir():
        raise FileNotFoundError(
            f"no pre-trained model in {folder}. In a deployment, copy the server's folder to every client and name it: "
            """--run-config 'model="FOLDER"'"""
        )
    return named or str(folder)


def load_base(name: str) -> tuple[Any, Any]:
    """A causal language model and its tokenizer, by a name of the Hugging Face hub or by a folder."""
    return AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)


def pretrain(settings: Pretraining, report: Callable[[str], None]) -> Path:
    """Train a tokenizer and a GPT-2 on the Old Testament, unless that was done before. Returns their folder."""
    folder = settings.folder()
    if folder.is_dir():
        return folder
    text = old_testament()
    tokenizer = train_tokenizer(text, settings.vocabulary)
    ids = torch.tensor(tokenizer.encode(text).ids)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=settings.vocabulary,
                n_positions=settings.context,
                n_embd=settings.width,
                n_layer=settings.layers,
                n_head=settings.heads,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=settings.steps, pct_start=0.1)
    for step, batch in enumerate(batches(ids, settings.context, settings.batch_size, settings.seed), start=1):
        loss = token_loss(model, batch, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == settings.steps:
            report(f"pre-training: step {step} of {settings.steps}, loss {loss.item():.2f}")
        if step == settings.steps:
            break
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as draft:  # whole or not at all
        model.save_pretrained(draft)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(draft)
        Path(draft).rename(folder)
        Path(draft).mkdir()
    return folder


def train_tokenizer(text: str, vocabulary: int) -> Tokenizer:
    """Byte-pair encoding of a vocabulary of this size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer
