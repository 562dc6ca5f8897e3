"""python simulation.py SITE,SITE,… SETTINGS: the roles' federation in NVFlare's simulator; settings are JSON."""

import json
import sys
from pathlib import Path

from nvflare.recipe import SimEnv

from secureafl.engines.nvflare import AsyncClient, AsyncServer, federation_recipe

if __name__ == "__main__":
    names, settings = sys.argv[1].split(","), json.loads(sys.argv[2])
    server = AsyncServer("roles:initial_model", settings, evaluate="roles:evaluate")
    files = [Path(__file__).with_name("roles.py")]
    recipe = federation_recipe("roles", server, AsyncClient("roles:train"), files=files)
    recipe.execute(SimEnv(clients=names))
