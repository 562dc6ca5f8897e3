"""A learning task: a network with a loss, seen from outside as flat float32 vectors.

All parameters are views of one flat tensor and all gradients of another. So giving the network other parameters is one
copy, and taking the gradient away is another.

Pixels are normalised here, (x - mean) / std with x in [0, 1]. By default both are 0.5, which maps pixels to [-1, 1]
and needs no look at anyone's data.

Shapes: N images, C channels, H x W pixels, z classes, d parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from secureafl.errors import LayoutError, SettingsError
from secureafl.lab.arrays import Images, Labels, Outputs
from secureafl.lab.simulation.models import ImageShape, build
from secureafl.lab.streams import torch_seed
from secureafl.layout import Layout
from secureafl.types import Vector

Forward: TypeAlias = Callable[[Images], Tensor]
"""Images in, outputs out: (N, z) logits or (N,) predictions, with a graph to differentiate."""

CustomLoss: TypeAlias = Callable[[Forward, Tensor], Tensor]
"""A scalar made from outputs and from the flat (d,) parameters; both are differentiated."""

PREDICT_BATCH = 128
"""Images that go through the network at once when nothing is differentiated. Small enough for a processor's cache."""


def make_deterministic(num_threads: int = 1) -> None:
    """Let PyTorch use only algorithms that repeat themselves bit for bit. Process-wide: call it where a run starts.

    Sums depend on how work is divided among threads, so their number belongs to what must be equal.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it a GPU's matrix products refuse
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)
    # Only uninitialised memory could differ, and nothing here reads it; filling it would cost time on every step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def check_device(name: str) -> None:
    """Say now if PyTorch cannot compute there."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # what PyTorch raises differs from device to device
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"device = {name!r}: PyTorch cannot compute there ({reason}); install its build for your GPU, or leave "
            "--device out to compute on the processor"
        ) from error


class Task:
    """A network for images of one shape, with cross-entropy, or with the mean squared error if `num_classes` is None.

    Not safe to share between threads: the network is one object that each call fills with the parameters given.
    """

    _memory_format = torch.channels_last  # faster on a processor

    def __init__(
        self,
        architecture: str,
        num_classes: int | None,
        image_shape: ImageShape,
        *,
        mean: float = 0.5,
        std: float = 0.5,
        device: str = "cpu",
    ) -> None:
        if num_classes is not None and num_classes < 2:
            raise SettingsError(f"num_classes = {num_classes}: at least 2, or None for a regression")
        if std <= 0:
            raise SettingsError(f"std = {std}: it must be above 0")
        self.architecture = architecture
        self.num_classes = num_classes
        self.image_shape = image_shape
        self._scale, self._shift = 1 / std, -mean / std
        self.device = torch.device(device)
        self._net = self._build(seed=0).to(self.device)
        self.layout = Layout.of({name: p.detach().cpu().numpy() for name, p in self._net.named_parameters()})
        self._params, self._grads = _flatten(self._net)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return len(self._params)

    def initial(self, seed: int) -> Vector:
        """(d,) random initial parameters: a function of the seed alone."""
        net = self._build(seed)
        return np.concatenate([p.detach().numpy().reshape(-1) for p in net.parameters()])

    def gradient(self, params: Vector, x: Images, y: Labels) -> Vector:
        """(d,) gradient of the mean loss over these samples."""
        self._set(params)
        return self._backward(self._loss(self._forward(x), self._labels(y)))

    def loss(self, params: Vector, x: Images, y: Labels) -> float:
        """The mean loss over these samples."""
        return float(self._loss(torch.from_numpy(self.predict(params, x)), torch.from_numpy(np.asarray(y))))

    def loss_gradient(self, params: Vector, loss: CustomLoss) -> Vector:
        """(d,) gradient of a loss of the caller's own.

        `loss(forward, flat)` gets the network as a function of images, and its parameters as one differentiable vector:

            task.loss_gradient(params, lambda forward, flat: forward(x).logsumexp(1).mean() + 0.1 * flat.norm())
        """
        self._set(params)
        flat = torch.cat([p.reshape(-1) for p in self._net.parameters()])
        return self._backward(loss(self._forward, flat))

    def predict(self, params: Vector, x: Images, transform: Callable[[Images], Images] | None = None) -> Outputs:
        """(N, z) logits, or (N,) predictions of a regression.

        `transform` is applied batch by batch (a trigger's `apply`, say), so that no changed copy of all images is made.
        """
        self._set(params)
        outputs: list[Outputs] = []
        with torch.inference_mode():
            for start in range(0, len(x), PREDICT_BATCH):
                batch = x[start : start + PREDICT_BATCH]
                outputs.append(self._forward(batch if transform is None else transform(batch)).cpu().numpy())
        return np.concatenate(outputs) if outputs else np.empty((0, *self._output_shape), np.float32)

    @property
    def _output_shape(self) -> tuple[int, ...]:
        return () if self.num_classes is None else (self.num_classes,)

    def _build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "init"))
            return build(self.architecture, self.image_shape, self.num_classes or 1)

    def _set(self, params: Vector) -> None:
        if params.shape != (self.dim,) or params.dtype != np.float32:
            raise LayoutError(
                f"params have shape {params.shape} and type {params.dtype}; ({self.dim},) float32 is needed"
            )
        with torch.no_grad():
            self._params.copy_(_as_tensor(params))

    def _forward(self, x: Images) -> Tensor:
        if x.shape[1:] != self.image_shape:
            raise SettingsError(f"images have shape {x.shape}; (N, {', '.join(map(str, self.image_shape))}) is needed")
        scale = self._scale / 255 if x.dtype == np.uint8 else self._scale
        pixels = _as_tensor(x).to(self.device, torch.float32, memory_format=self._memory_format, copy=True)
        outputs: Tensor = self._net(pixels.mul_(scale).add_(self._shift))
        return outputs.squeeze(1) if self.num_classes is None else outputs

    def _labels(self, y: Labels) -> Tensor:
        return _as_tensor(y).to(self.device)

    def _loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.num_classes is None:
            return functional.mse_loss(outputs, y.to(torch.float32))
        return functional.cross_entropy(outputs, y.to(torch.int64))

    def _backward(self, loss: Tensor) -> Vector:
        self._grads.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        gradient: Vector = self._grads.cpu().numpy().copy()
        return gradient


def _flatten(net: nn.Module) -> tuple[Tensor, Tensor]:
    """Move all parameters into one tensor and all gradients into another; the network keeps views of both."""
    parameters = list(net.parameters())
    params = torch.cat([p.detach().reshape(-1) for p in parameters])
    grads = torch.zeros_like(params)
    start = 0
    for p in parameters:
        stop = start + p.numel()
        p.data = params[start:stop].view_as(p)
        p.grad = grads[start:stop].view_as(p)
        start = stop
    return params, grads


def _as_tensor(array: Images | Labels | Vector) -> Tensor:
    """The array's own memory as a tensor. Mapped files are read-only, which PyTorch warns of; so those are copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
