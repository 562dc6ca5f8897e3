"""python nvflare_simulation.py ARGUMENTS: the measuring server in NVFlare's simulator; arguments are JSON."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nvflare.recipe import SimEnv

from engine_app.nvflare_server import MeasuringServer
from secureafl.engines.nvflare import AsyncClient, federation_recipe

if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    client = AsyncClient("engine_app.nvflare_server:train")
    recipe = federation_recipe("measure", MeasuringServer(**arguments), client, files=[Path(__file__).parent])
    recipe.execute(SimEnv(num_clients=arguments["num_clients"]))
