"""Short ways to write models and updates, and the small federation that contracts are checked on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from secureafl import ClientId, Model, Update
from secureafl.testing.quadratic import Quadratic as Quadratic
from secureafl.testing.quadratic import QuadraticFederation as Federation

__all__ = ["Federation", "Quadratic", "model", "update"]


def update(client: int, base: Model, delta: npt.ArrayLike) -> Update:
    return Update(ClientId(client), base, np.asarray(delta, np.float32))


def model(version: int, params: npt.ArrayLike) -> Model:
    return Model(version, np.asarray(params, np.float32))
