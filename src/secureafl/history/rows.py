"""What the server remembers of each client.

Per client: its last stored update g, the base model w it was computed on, and up to `memory` pairs
(param step s, update step y), all in `Pages`. Beside them, small: the rows' Gram matrix and the client's L-BFGS
operator.

A client's estimate is a weighted sum of its rows, with weights from small matrices only:

    estimate = weights[0] g + weights[1] (params - w) + sum over pair rows

Shapes: n = known clients, d = parameters, m = memory, r = 2 + 2m rows per client, ordered g, w, y_1..y_m, s_1..s_m
(pair places are reused in turn, so they are not in order of age).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from secureafl import kernels
from secureafl.history import lbfgs
from secureafl.history.pages import BASE, DELTA, PAGE_BYTES, PAIRS, Pages, Precision
from secureafl.types import Array, ClientId, StateDict, Vector

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Corrections:
    """The Hessian product B (params - w) of every known client, as weights over its rows.

    weights  (n, r)
    moments  (n, r, r) inner products of g, the gap params - w, and the pair rows, so that |row sum|^2 = w^T moments w
    """

    weights: Float
    moments: Float


class Remembered(NamedTuple):
    """What is known of a client's rows after an update was stored.

    products  (r,) inner products of its rows with its gap to the present model; in the base model's place gap.gap
    kept      (r,) which rows are the same as before
    scales    (r,) what errors of products are measured in: the length of each row times that of the longest gap
    """

    products: Float
    kept: npt.NDArray[np.bool_]
    scales: Float


class History:
    """References and pairs of every client that was ever stored. Rows are updated in place.

    precision   how rows are stored: float32, or float16 with a scale per row
    path        directory for a memory-mapped history; None for plain memory
    threads     how many threads a pass over the history may use; None for all
    page_bytes  how much of it lies together, if that holds at least one client
    """

    def __init__(
        self,
        dim: int,
        memory: int,
        *,
        min_curvature: float = 1e-8,
        strict: bool = True,
        precision: Precision = "float32",
        path: Path | None = None,
        threads: int | None = None,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self.dim = dim
        self.memory = memory
        self.precision = precision
        self._min_curvature = min_curvature
        self._strict = strict
        self.guards: Counter[str] = Counter()  # how often a pair or an operator was set aside, and why
        self._slots: dict[ClientId, int] = {}
        self._pages = Pages(dim, self.num_rows, precision, path=path, threads=threads, page_bytes=page_bytes)
        self._allocate(0)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, client: ClientId) -> bool:
        return client in self._slots

    @property
    def clients(self) -> list[ClientId]:
        """Known clients, in the order of the rows of everything this class returns."""
        return list(self._slots)

    @property
    def num_rows(self) -> int:
        """Rows of a client: r."""
        return 2 + 2 * self.memory

    @property
    def memory_bytes(self) -> int:
        """Bytes taken by the rows; `expected_bytes` says it beforehand."""
        return self._pages.memory_bytes

    def slot(self, client: ClientId) -> int:
        """The client's place in that order."""
        return self._slots[client]

    def last_delta(self, client: ClientId) -> Vector:
        """The client's reference update."""
        return self._pages.reference(self._slots[client], DELTA)

    def last_base(self, client: ClientId) -> Vector:
        """The model that update was made for."""
        return self._pages.reference(self._slots[client], BASE)

    def change(self, client: ClientId, delta: Vector, base: Vector) -> kernels.Change:
        """How the update and its base model differ from the client's reference."""
        return kernels.change(delta, self.last_delta(client), base, self.last_base(client))

    def distances(self, client: ClientId, delta: Vector, base: Vector) -> tuple[float, float]:
        """How far the update and its base model are from the client's reference: |g - g_ref|, |w - w_ref|."""
        change = self.change(client, delta, base)
        return change.delta_change, change.param_change

    def remember(
        self,
        client: ClientId,
        delta: Vector,
        base: Vector,
        now: Vector | None = None,
        change: kernels.Change | None = None,
    ) -> Remembered:
        """Make this update the client's reference and learn a pair from the step that led to it.

        now     the present model, for the products returned; `base` if not given
        change  what `change` says of this update, to spare measuring it again
        """
        kept = np.zeros(self.num_rows, np.bool_)
        slot = self._slots.get(client)
        if slot is None:
            slot = self._enrol(client, base)
        else:
            change = change or self.change(client, delta, base)
            kept[PAIRS:] = True
            kept[self._push_pair(slot, change)] = False
        self._pages.write(slot, DELTA, delta)
        self._pages.write(slot, BASE, base)
        if self.memory == 0:  # nothing will ask for products
            self._gram[slot, DELTA, DELTA] = kernels.row_square(self._pages.only(slot), DELTA, self.dim)
            return Remembered(np.zeros(self.num_rows), kept, np.ones(self.num_rows))
        gram = kernels.moments(self._pages.only(slot), base if now is None else now)
        products: Float = gram[BASE].copy()
        gram[BASE, :] = gram[:, BASE] = 0.0
        self._gram[slot] = gram
        self._refresh_operator(slot)
        gap = np.sqrt(products[BASE]) + (change.param_change if change else 0.0)
        return Remembered(products, kept, np.maximum(np.sqrt(np.diag(gram)) * gap, np.finfo(np.float64).tiny))

    def products(self, params: Vector) -> Float:
        """(n, r) inner products of every client's rows with its gap params - w; in the base model's place gap.gap."""
        return kernels.gap_products(self._pages.chunks, params)

    def lengths(self) -> Float:
        """(n,) the length of every client's last update."""
        return np.asarray(np.sqrt(self._gram[: len(self), DELTA, DELTA]))

    def corrections(self, params: Vector, products: Float | None = None) -> Corrections:
        """The Hessian product from each client's base model to `params`; `products` if they are known already."""
        return self._corrections(slice(0, len(self)), self.products(params) if products is None else products)

    def correction(self, client: ClientId, params: Vector) -> Corrections:
        """The same for one client, as arrays with n = 1."""
        slot = self._slots[client]
        products = kernels.gap_products(self._pages.only(slot), params)
        return self._corrections(slice(slot, slot + 1), products)

    def correction_along(self, client: ClientId, change: kernels.Change) -> tuple[Corrections, Float]:
        """The Hessian product from the client's reference along a change from it, and (r,) the products of its rows
        with the change of update, the change of model standing in the base model's place.
        """
        slot = self._slots[client]
        along, real = kernels.row_products(self._pages.only(slot), change.param_step, change.delta_step)
        along[BASE], real[BASE] = change.param_change**2, change.curvature
        return self._corrections(slice(slot, slot + 1), along[None]), real

    def step(
        self,
        weights: Float,
        params: Vector,
        sender: ClientId,
        received: Vector | None,
        rule: kernels.Rule,
        server_lr: float,
        *,
        lead: Vector | None = None,
        excluded: npt.NDArray[np.bool_] | None = None,
        follow: bool = True,
        order: npt.NDArray[np.int64] | None = None,
        bucket: int = 1,
    ) -> kernels.Step:
        """One pass: the aggregate of everyone's weighted row sum, with `received` in place of the sender's.

        lead    (d,) added to it
        excluded  (n,) who has no vote
        follow  whether the products of the rows with the movement are wanted
        order, bucket  in which order votes are averaged by so many
        """
        place = self._slots.get(sender, len(self))
        return kernels.fused_step(
            self._pages.chunks,
            weights,
            params,
            place,
            received,
            rule,
            server_lr,
            lead=lead,
            excluded=excluded,
            follow=follow,
            order=order,
            bucket=bucket,
        )

    def estimates(self, weights: Float, params: Vector, out: Vector) -> None:
        """Write the weighted row sums of all known clients into the first n rows of `out`."""
        kernels.estimates(self._pages.chunks, weights, params, out)

    def estimate(self, client: ClientId, weights: Float, params: Vector) -> Vector:
        """One client's weighted row sum; weights (r,)."""
        out = np.empty((1, self.dim), np.float32)
        kernels.estimates(self._pages.only(self._slots[client]), weights[None], params, out)
        return np.asarray(out[0])

    def release(self, client: ClientId) -> None:
        """Keep what is known of this client in the file alone until it is asked for; nothing to do in plain memory."""
        self._pages.release(self._slots[client])

    def rebase(self, params: Vector) -> None:
        """In half precision, keep models as differences from these parameters, so that they stay precise."""
        self._pages.rebase(params)

    def state_dict(self) -> StateDict:
        n = len(self)
        names = sorted(self.guards)
        return {
            "clients": np.array(self.clients, np.int64),
            **self._pages.state_dict(),
            "gram": self._gram[:n].copy(),
            "num_pushed": self._num_pushed[:n].copy(),
            **{f"guards.{name}": np.array(self.guards[name], np.int64) for name in names},
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._pages.load_state_dict(state)
        n = len(self._pages)
        self._allocate(n)
        self._gram[:], self._num_pushed[:] = state["gram"], state["num_pushed"]
        self._slots = {ClientId(client): slot for slot, client in enumerate(np.asarray(state["clients"]).tolist())}
        prefix = "guards."
        for slot in range(n):
            self._refresh_operator(slot)
        self.guards = Counter({k.removeprefix(prefix): int(v) for k, v in state.items() if k.startswith(prefix)})

    def _corrections(self, slots: slice, products: Float) -> Corrections:
        weights = np.einsum("nij,nj->ni", self._matrix[slots], products)  # c = K [Y^T v ; S^T v]
        weights[:, BASE] = self._sigma[slots]
        moments = self._gram[slots].copy()
        moments[:, BASE, :] = products
        moments[:, :, BASE] = products
        return Corrections(weights, moments)

    def _push_pair(self, slot: int, change: kernels.Change) -> list[int]:
        """Append (w - w_ref, g - g_ref) unless it shows no positive curvature; returns the rows written."""
        if self.memory == 0:
            return []
        if change.param_change == 0.0:
            self.guards["pair on an unchanged model"] += 1
            return []
        if not lbfgs.usable_pair(change.curvature, change.param_change, change.delta_change, self._min_curvature):
            self.guards["pair without positive curvature"] += 1
            return []
        place = int(self._num_pushed[slot]) % self.memory
        self._pages.write(slot, PAIRS + place, change.delta_step)
        self._pages.write(slot, PAIRS + self.memory + place, change.param_step)
        self._num_pushed[slot] += 1
        return [PAIRS + place, PAIRS + self.memory + place]

    def _refresh_operator(self, slot: int) -> None:
        pushed, m = int(self._num_pushed[slot]), self.memory
        count = min(pushed, m)
        self._matrix[slot], self._sigma[slot] = 0.0, 0.0
        if count == 0:
            return
        by_age = np.array([(pushed - count + j) % m for j in range(count)])
        places = np.concatenate([PAIRS + by_age, PAIRS + m + by_age])
        grid = np.ix_(places, places)
        operator = lbfgs.operator(self._gram[slot][grid], strict=self._strict)
        if operator is None:
            self.guards["ill-conditioned operator"] += 1
            return
        self._matrix[slot][grid] = operator.matrix
        self._sigma[slot] = operator.sigma

    def _enrol(self, client: ClientId, base: Vector) -> int:
        if not self._slots:
            self._pages.rebase(base)
        slot = self._pages.add()
        if slot == len(self._gram):
            gram, num_pushed, matrix, sigma = self._gram, self._num_pushed, self._matrix, self._sigma
            self._allocate(max(8, 2 * slot))
            self._gram[:slot], self._num_pushed[:slot] = gram, num_pushed
            self._matrix[:slot], self._sigma[:slot] = matrix, sigma
        self._slots[client] = slot
        return slot

    def _allocate(self, capacity: int) -> None:
        """The small matrices; the rows have their own place."""
        r = self.num_rows
        self._gram: Float = np.zeros((capacity, r, r))
        self._num_pushed: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._matrix: Float = np.zeros((capacity, r, r))
        self._sigma: Float = np.zeros(capacity)
