"""What the server remembers of each client, and the only place that holds large arrays.

Per client: its last stored update g, the base model w it was computed on, and up to `memory` pairs
(param step s, update step y). Beside them, small: the rows' Gram matrix and the client's L-BFGS operator.

A client's estimate is a weighted sum of its rows, with weights from small matrices only:

    estimate = weights[0] g + weights[1] (params - w) + sum over pair rows

Shapes: n = known clients, d = parameters, m = memory, r = 2 + 2m rows per client, ordered g, w, y_1..y_m, s_1..s_m
(pair places are reused in turn, so they are not in order of age).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secureafl import kernels, lbfgs
from secureafl.errors import StateError
from secureafl.types import Array, ClientId, StateDict, Vector

Float = npt.NDArray[np.float64]

DELTA, BASE, PAIRS = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Corrections:
    """The Hessian product B (params - w) of every known client, as weights over its rows.

    weights  (n, r)
    moments  (n, r, r) inner products of g, the gap params - w, and the pair rows, so that |row sum|^2 = w^T moments w
    """

    weights: Float
    moments: Float


class History:
    """References and pairs of every client that was ever stored. Arrays are updated in place."""

    def __init__(self, dim: int, memory: int, *, min_curvature: float, strict: bool) -> None:
        self.dim = dim
        self.memory = memory
        self._min_curvature = min_curvature
        self._strict = strict
        self.guards: Counter[str] = Counter()  # how often a pair or an operator was set aside, and why
        self._slots: dict[ClientId, int] = {}
        self._allocate(0)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, client: ClientId) -> bool:
        return client in self._slots

    @property
    def clients(self) -> list[ClientId]:
        """Known clients, in the order of the rows of everything this class returns."""
        return list(self._slots)

    def slot(self, client: ClientId) -> int:
        """The client's place in that order."""
        return self._slots[client]

    def last_delta(self, client: ClientId) -> Vector:
        """The client's reference update, as a view: the next `remember` overwrites it."""
        return np.asarray(self._rows[self._slots[client], DELTA])

    def distances(self, client: ClientId, delta: Vector, base: Vector) -> tuple[float, float]:
        """How far the update and its base model are from the client's reference: |g - g_ref|, |w - w_ref|."""
        rows = self._rows[self._slots[client]]
        return (
            float(np.sqrt(kernels.squared_distance(delta, rows[DELTA]))),
            float(np.sqrt(kernels.squared_distance(base, rows[BASE]))),
        )

    def remember(self, client: ClientId, delta: Vector, base: Vector) -> None:
        """Make this update the client's reference and learn a pair from the step that led to it."""
        slot = self._slots.get(client)
        if slot is None:
            slot = self._enrol(client)
        else:
            self._push_pair(slot, delta, base)
        self._rows[slot, DELTA] = delta
        self._rows[slot, BASE] = base
        self._gram[slot] = kernels.gram(self._rows[slot])
        self._refresh_operator(slot)

    def corrections(self, params: Vector) -> Corrections:
        """The Hessian product from each client's base model to `params`."""
        n = len(self)
        return self._corrections(slice(0, n), kernels.gap_products(self._rows[:n], params))

    def correction(self, client: ClientId, params: Vector) -> Corrections:
        """The same for one client, as arrays with n = 1."""
        slot = self._slots[client]
        here = slice(slot, slot + 1)
        return self._corrections(here, kernels.gap_products(self._rows[here], params))

    def estimates(self, weights: Float, params: Vector, out: Vector) -> None:
        """Write the weighted row sums of all known clients into the first n rows of `out`."""
        n = len(self)
        kernels.combine(self._rows[:n], weights, params, out[:n])

    def estimate(self, client: ClientId, weights: Float, params: Vector) -> Vector:
        """One client's weighted row sum; weights (r,)."""
        slot = self._slots[client]
        out = np.empty((1, self.dim), np.float32)
        kernels.combine(self._rows[slot : slot + 1], weights[None], params, out)
        return np.asarray(out[0])

    def state_dict(self) -> StateDict:
        n = len(self)
        names = sorted(self.guards)
        return {
            "clients": np.array(self.clients, np.int64),
            "rows": self._rows[:n].copy(),
            "gram": self._gram[:n].copy(),
            "num_pushed": self._num_pushed[:n].copy(),
            **{f"guards.{name}": np.array(self.guards[name], np.int64) for name in names},
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        rows = np.asarray(state["rows"], np.float32)
        if rows.shape[1:] != (2 + 2 * self.memory, self.dim):
            raise StateError(
                f"saved history has rows {rows.shape[1:]}; this one needs {(2 + 2 * self.memory, self.dim)}"
            )
        n = len(rows)
        self._allocate(n)
        self._rows[:], self._gram[:], self._num_pushed[:] = rows, state["gram"], state["num_pushed"]
        self._slots = {ClientId(client): slot for slot, client in enumerate(np.asarray(state["clients"]).tolist())}
        for slot in range(n):
            self._refresh_operator(slot)
        prefix = "guards."
        self.guards = Counter({k.removeprefix(prefix): int(v) for k, v in state.items() if k.startswith(prefix)})

    def _corrections(self, slots: slice, products: Float) -> Corrections:
        weights = np.einsum("nij,nj->ni", self._matrix[slots], products)  # c = K [Y^T v ; S^T v]
        weights[:, BASE] = self._sigma[slots]
        moments = self._gram[slots].copy()
        moments[:, BASE, :] = products
        moments[:, :, BASE] = products
        return Corrections(weights, moments)

    def _push_pair(self, slot: int, delta: Vector, base: Vector) -> None:
        """Append (w - w_ref, g - g_ref) unless it shows no positive curvature."""
        if self.memory == 0:
            return
        rows = self._rows[slot]
        s, y = base - rows[BASE], delta - rows[DELTA]
        s_norm, y_norm = np.linalg.norm(s.astype(np.float64)), np.linalg.norm(y.astype(np.float64))
        if s_norm == 0.0:
            self.guards["pair on an unchanged model"] += 1
            return
        if not lbfgs.usable_pair(float(s.astype(np.float64) @ y), float(s_norm), float(y_norm), self._min_curvature):
            self.guards["pair without positive curvature"] += 1
            return
        place = int(self._num_pushed[slot]) % self.memory
        rows[PAIRS + place], rows[PAIRS + self.memory + place] = y, s
        self._num_pushed[slot] += 1

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

    def _enrol(self, client: ClientId) -> int:
        slot = len(self._slots)
        if slot == len(self._rows):
            rows, gram, num_pushed, matrix, sigma = self._rows, self._gram, self._num_pushed, self._matrix, self._sigma
            self._allocate(max(8, 2 * slot))
            self._rows[:slot], self._gram[:slot], self._num_pushed[:slot] = rows, gram, num_pushed
            self._matrix[:slot], self._sigma[:slot] = matrix, sigma
        self._slots[client] = slot
        return slot

    def _allocate(self, capacity: int) -> None:
        r = 2 + 2 * self.memory
        self._rows: Vector = np.zeros((capacity, r, self.dim), np.float32)
        self._gram: Float = np.zeros((capacity, r, r))
        self._num_pushed: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._matrix: Float = np.zeros((capacity, r, r))
        self._sigma: Float = np.zeros(capacity)
