"""SecureAFL on NVIDIA FLARE: live client processes, called through its Collab API."""

from secureafl.engines.nvflare.app import AsyncServer, run_federation
from secureafl.engines.nvflare.app_settings import NVFlareSettings
from secureafl.engines.nvflare.client import AsyncClient
from secureafl.engines.nvflare.job import federation_recipe

__all__ = ["AsyncClient", "AsyncServer", "NVFlareSettings", "federation_recipe", "run_federation"]
