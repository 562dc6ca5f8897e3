"""Asynchronous: the model moves whenever a client answers, and no client is accepted without a check."""

from blobs.task import accuracy, initial_weights
from secureafl.engines.flower import server_app

app = server_app(
    lambda context: initial_weights(),
    evaluate=lambda weights: {"accuracy": accuracy(weights)},
)
