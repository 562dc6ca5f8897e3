"""SecureAFL on Flower: keep the ClientApp, replace the ServerApp."""

from secureafl.engines.flower.client import delta_answer, gradient_answer, sign_answers
from secureafl.engines.flower.config import FlowerSettings, read_run_config
from secureafl.engines.flower.server_app import run_federation, server_app

__all__ = [
    "FlowerSettings",
    "delta_answer",
    "gradient_answer",
    "read_run_config",
    "run_federation",
    "server_app",
    "sign_answers",
]
