"""Synchronous: every round waits for its slowest client, and accepts everyone."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from blobs.task import accuracy, initial_weights

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": accuracy({name: array.numpy() for name, array in arrays.items()})})


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_nodes = int(context.run_config["num-nodes"])
    FedAvg(fraction_evaluate=0.0, min_train_nodes=num_nodes, min_available_nodes=num_nodes).start(
        grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in initial_weights().items()}),
        num_rounds=int(context.run_config["num-rounds"]),
        evaluate_fn=evaluate,
    )
