"""The server of a federation whose honest nodes pull every weight towards 1."""

import numpy as np

from secureafl.engines.flower import server_app
from secureafl.types import NamedArrays


def evaluate(arrays: NamedArrays) -> dict[str, float]:
    return {"error": float(np.abs(arrays["w"] - 1.0).mean())}


app = server_app(lambda context: {"w": np.zeros(int(context.run_config["dim"]), np.float32)}, evaluate=evaluate)
