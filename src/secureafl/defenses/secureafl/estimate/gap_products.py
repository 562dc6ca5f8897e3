"""The inner products of every client's rows with its gap, carried from step to step instead of computed anew.

When the model moves by `moved`, a product row.gap grows by row.moved, and |gap|^2 by 2 gap.moved + |moved|^2. Both come
with the pass that made the step. Trust in them is limited: they are used only for exactly the parameters they were made
for, computed anew at a set interval, and whenever an arrival shows that they drifted.

Shapes: n = known clients, r = rows per client, d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secureafl.history import BASE, Float, History, Precision, Remembered
from secureafl.kernels import Step
from secureafl.types import Array, StateDict, Vector

MAX_DRIFT: Mapping[Precision, float] = {"float32": 1e-6, "float16": 1e-2}
"""Error of a product, relative to the lengths of row and gap, above which all are computed anew. In half precision a
client's stored base model is itself only as exact as this."""


class GapProducts:
    """The products (n, r) of a history for one model at a time; `interval` counts the steps between exact ones."""

    def __init__(self, history: History, interval: int) -> None:
        self._history = history
        self._interval = interval
        self._params: Vector = np.empty(0, np.float32)  # where the products were carried to; empty for nowhere
        self._products: Float = np.empty((0, 0))
        self._age = 0
        self.num_exact = 0  # how often all products were computed anew
        self.drift = 0.0  # largest relative error of a carried product that an arrival has shown

    @property
    def params(self) -> Vector | None:
        """The model that the products are for, if any."""
        return self._params if len(self._params) else None

    def at(self, params: Vector) -> Float:
        """(n, r): the products for `params`, carried along if that is where they were carried to."""
        if self._age >= self._interval:
            self._history.rebase(params)
            self._params, self._age = self._params[:0], 0
        if not np.array_equal(self._params, params) or not np.isfinite(self._products).all():
            self._params, self._products = params.copy(), self._history.products(params)
            self.num_exact += 1
        return self._products

    def advance(self, step: Step) -> None:
        """Follow a step that was made from where the products are."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._products = self._products + step.products
            self._products[:, BASE] += step.products[:, BASE] + step.moved
        self._params = step.ahead
        self._age += 1

    def replace(self, slot: int, remembered: Remembered, along: Float | None) -> None:
        """Take over one client's exact products for where they are carried to.

        along  (r,) products of the client's rows before with the change of its base model. They tell what the carried
               products of the rows that it kept should be by now.
        """
        if not len(self._params):
            return  # all will be computed anew
        if slot == len(self._products):
            self._products = np.concatenate([self._products, remembered.products[None]])
            return
        if along is not None and remembered.kept.any():
            error = np.abs(self._products[slot] - along - remembered.products)[remembered.kept]
            drift = float(np.max(error / remembered.scales[remembered.kept]))
            self.drift = max(self.drift, drift)
            if not drift <= MAX_DRIFT[self._history.precision]:
                self._params = self._params[:0]
        self._products[slot] = remembered.products

    def state_dict(self) -> StateDict:
        return {"params": self._params.copy(), "products": self._products.copy(), "age": np.array(self._age, np.int64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._params = np.array(state["params"], np.float32)
        self._products = np.array(state["products"], np.float64)
        self._age = int(np.asarray(state["age"], np.int64))
