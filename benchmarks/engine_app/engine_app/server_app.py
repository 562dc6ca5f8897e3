"""Measures on Flower."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from engine_app.measure import initial_model, measure
from secureafl.engines.flower import read_run_config, run_federation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    dim, seconds = int(config["dim"]), float(config["phase-seconds"])
    measure(
        lambda defense, until: run_federation(
            grid, initial_model(dim), read_run_config(config, **until), defense=defense
        ),
        seconds=seconds,
        dim=dim,
        num_known=int(config["num-known"]),
        repeats=int(config["repeats"]),
        server_lr=read_run_config(config).server_lr,
    )
