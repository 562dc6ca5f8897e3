"""The same federation on NVIDIA FLARE.

python nvflare_job.py                        # its simulator
python nvflare_job.py --poc                  # a server and sites of their own on this machine
python nvflare_job.py --kit admin@site.org   # a provisioned deployment, with an administrator's startup kit
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nvflare.recipe import PocEnv, ProdEnv, SimEnv

from secureafl.engines.nvflare import AsyncClient, AsyncServer, federation_recipe

PACKAGE = Path(__file__).parent / "fashion"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4, help="so many of them, in simulator and proof of concept")
    parser.add_argument("--updates", type=int, default=200, help="end after so many arrivals")
    parser.add_argument("--run-dir", default="", help="where the audit trail and the final model go, on the server")
    parser.add_argument("--poc", action="store_true", help="real processes on this machine")
    parser.add_argument("--kit", default="", help="startup kit of an administrator, for a provisioned deployment")
    chosen = parser.parse_args()

    settings = {"server_lr": 0.2, "stop_after_updates": chosen.updates, "evaluate_every": 25}
    if chosen.run_dir:
        settings["run_dir"] = str(Path(chosen.run_dir).resolve())
    recipe = federation_recipe(
        "fashion",
        AsyncServer(
            "fashion.task:initial_model",
            settings,
            evaluate="fashion.task:accuracy",
            train_config={"local-steps": 10, "batch-size": 32, "lr": 0.1},
        ),
        AsyncClient("fashion.task:train"),
        files=[PACKAGE],
        min_clients=chosen.clients,
    )
    if chosen.kit:
        recipe.execute(ProdEnv(chosen.kit, username=Path(chosen.kit).name))
    elif chosen.poc:
        recipe.execute(PocEnv(num_clients=chosen.clients)).get_result()
    else:
        recipe.execute(SimEnv(num_clients=chosen.clients))


if __name__ == "__main__":
    main()
