"""An asynchronous, poisoning-robust ServerApp.

    from secureafl.engines.flower import server_app

    app = server_app(lambda context: Net().state_dict(), evaluate=test)

Settings come from the app's own `pyproject.toml`, `[tool.flwr.app.config.secureafl]`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeAlias

from flwr.app import ConfigRecordValues, Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from secureafl.defenses import Defense, Reference, Scorer
from secureafl.engines.flower.config import FlowerSettings, read_run_config
from secureafl.engines.flower.nodes import NodePool
from secureafl.engines.flower.records import Records, to_arrays
from secureafl.engines.signing import read_keys
from secureafl.layout import Layout
from secureafl.server import Federation, Machine, Result
from secureafl.server.evaluation import Evaluate
from secureafl.server.progress import Progress, verdict_table

# Threads of a step that is done must not spin while clients on the same machine want the core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

InitialModel: TypeAlias = Callable[[Context], Any]
"""Makes the first model: an `ArrayRecord`, a PyTorch `state_dict`, or a mapping of names to NumPy arrays."""


def server_app(
    initial_model: InitialModel,
    *,
    evaluate: Evaluate | None = None,
    train_config: Mapping[str, ConfigRecordValues] | None = None,
    reference: Reference | None = None,
    score: Scorer | None = None,
    on_finish: Callable[[Result, Context], None] | None = None,
) -> ServerApp:
    """A complete ServerApp.

    initial_model  makes the first model, given Flower's context
    evaluate       scores a model on the server, beside training
    train_config   what every client finds in its message's "config"
    reference, score  trusted data, for the defenses that need them
    on_finish      called once with the result
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        result = run_federation(
            grid,
            initial_model(context),
            read_run_config(context.run_config),
            evaluate=evaluate,
            train_config=train_config,
            reference=reference,
            score=score,
        )
        if on_finish is not None:
            on_finish(result, context)

    return app


def run_federation(
    grid: Grid,
    model: Any,
    settings: FlowerSettings,
    *,
    evaluate: Evaluate | None = None,
    train_config: Mapping[str, ConfigRecordValues] | None = None,
    reference: Reference | None = None,
    score: Scorer | None = None,
    defense: Defense | None = None,
    console: Console | None = None,
) -> Result:
    """Train `model` with the grid's nodes until a stop condition holds, or SIGTERM or SIGINT comes.

    `defense` takes the place of the one the settings name: for a rule of your own.
    """
    arrays = to_arrays(model)
    layout = Layout.of(arrays)
    defense = defense or settings.make_defense(layout.dim, reference=reference, score=score)
    machine = Machine(defense, layout.flatten(arrays), settings.machine())
    keys = read_keys(settings.keys_file) if settings.keys_file is not None else None
    records = Records(layout, settings.client_returns, train_config, keys)
    console = console or Console()
    progress = Progress(console, settings.defense, settings.stop_after_updates)
    federation = Federation(machine, layout, settings, evaluate=evaluate, report=progress)
    if settings.resume:  # a new Flower run: messages of the old one can no longer be answered
        federation.withdraw_all("the server restarted")
    pool = NodePool(grid, federation, records, settings)
    try:
        with _stopped_by_signals(federation):
            result = federation.run()
    finally:
        pool.close()
        federation.close()
    console.print(verdict_table(result, f"{settings.defense}: {result.version} updates in {result.seconds:.0f} s"))
    return result


@contextlib.contextmanager
def _stopped_by_signals(federation: Federation) -> Iterator[None]:
    """The first SIGTERM or SIGINT ends the run in order; a second one does what it did before."""
    if threading.current_thread() is not threading.main_thread():  # Flower's simulation: signals are not ours
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, frame: FrameType | None) -> None:
        federation.stop()
        for each in numbers:
            signal.signal(each, previous[each])

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, previous[number])
