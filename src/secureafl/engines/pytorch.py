"""Federate only the parameters of a PyTorch model that are trained: those that require gradients, by their names.

A model that is fine-tuned through adapters (LoRA) is mostly frozen. Everyone has the frozen part; the rest is sent.

    model.load_state_dict(arrays)          # the whole model
    load_trainable(model, arrays)          # what is trained of it

    model.state_dict()                     # the whole model
    trainable_state(model)                 # what is trained of it

Needs PyTorch, which comes with no engine's extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secureafl.errors import LayoutError

__all__ = ["load_trainable", "trainable_state"]


def trainable_state(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that require gradients, by name: copies on the CPU.

    To be used as a `state_dict` is: as a server's first model, or in Flower's `ArrayRecord`. Types that NumPy does not
    know, such as bfloat16, become float32.
    """
    state = {name: _portable(parameter) for name, parameter in _trainable(module).items()}
    if not state:
        raise LayoutError(
            "no parameter of this model requires gradients: add the adapters, or set requires_grad where it is trained"
        )
    return state


def load_trainable(module: nn.Module, arrays: Mapping[str, Tensor | npt.NDArray[Any]]) -> None:
    """Copy arrays, by name, into the parameters that require gradients. Names and shapes must match exactly."""
    parameters = _trainable(module)
    if missing := sorted(parameters.keys() - arrays.keys()):
        raise LayoutError(f"no array for {_listed(missing)}: freeze what is not federated (requires_grad = False)")
    if extra := sorted(arrays.keys() - parameters.keys()):
        raise LayoutError(f"{_listed(extra)} is not trained here: freeze and name the same parameters on every side")
    for name, parameter in parameters.items():
        if tuple(arrays[name].shape) != tuple(parameter.shape):
            raise LayoutError(
                f"array {name!r} has shape {tuple(arrays[name].shape)}, the parameter {tuple(parameter.shape)}: "
                "build the model with the same settings on every side"
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            array = arrays[name]
            # A NumPy array may be read-only, which PyTorch warns of: a copy is not.
            parameter.copy_(torch.from_numpy(array.copy()) if isinstance(array, np.ndarray) else array)


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _portable(parameter: nn.Parameter) -> Tensor:
    value = parameter.detach().to("cpu", copy=True)
    return value.float() if value.dtype == torch.bfloat16 else value


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"
