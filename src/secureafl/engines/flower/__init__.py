"""SecureAFL on Flower: keep the ClientApp, replace the ServerApp."""

from typing import TYPE_CHECKING

from secureafl.lazily import imported

if TYPE_CHECKING:
    from secureafl.engines.flower.app import run_federation, server_app
    from secureafl.engines.flower.app_settings import FlowerSettings, read_run_config
    from secureafl.engines.flower.client import (
        compress_updates,
        delta_update,
        gradient_update,
        regional_update,
        sign_updates,
    )

__all__ = [
    "FlowerSettings",
    "compress_updates",
    "delta_update",
    "gradient_update",
    "read_run_config",
    "regional_update",
    "run_federation",
    "server_app",
    "sign_updates",
]

__getattr__ = imported(
    __name__,
    {
        "secureafl.engines.flower.app": ("run_federation", "server_app"),
        "secureafl.engines.flower.app_settings": ("FlowerSettings", "read_run_config"),
        "secureafl.engines.flower.client": (
            "compress_updates",
            "delta_update",
            "gradient_update",
            "regional_update",
            "sign_updates",
        ),
    },
)
