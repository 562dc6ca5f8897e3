"""The server of a region, and of the top: the same app. What tells them apart are the settings it is run with."""

from regions.task import accuracy, initial_weights
from secureafl.engines.flower import server_app

app = server_app(
    lambda context: initial_weights(),
    evaluate=lambda weights: {"accuracy": accuracy(weights)},
)
