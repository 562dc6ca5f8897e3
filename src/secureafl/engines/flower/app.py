"""An asynchronous, poisoning-robust ServerApp.

    from secureafl.engines.flower import server_app

    app = server_app(lambda context: Net().state_dict(), evaluate=test)

Settings come from the app's own `pyproject.toml`, `[tool.flwr.app.config.secureafl]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from flwr.app import ConfigRecordValues, Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from secureafl.defenses import Defense, Reference, Scorer
from secureafl.engines.flower.app_settings import FlowerSettings, read_run_config
from secureafl.engines.flower.carrier import Nodes
from secureafl.engines.flower.codec import Records
from secureafl.engines.flower.contents import to_arrays
from secureafl.engines.flower.plain_errors import plain_errors
from secureafl.engines.running import conduct
from secureafl.engines.sessions import SessionPool
from secureafl.layout import Layout
from secureafl.server import Federation, Result
from secureafl.server.live.evaluation import Evaluate

InitialModel: TypeAlias = Callable[[Context], Any]
"""Makes the first model: an `ArrayRecord`, a PyTorch `state_dict`, or a mapping of names to NumPy arrays."""


class AsyncServerApp(ServerApp):
    """A ServerApp that `server_app` made. It remembers what it was made of, for `secureafl check`."""

    initial_model: InitialModel
    reference: Reference | None
    score: Scorer | None


def server_app(
    initial_model: InitialModel,
    *,
    evaluate: Evaluate | None = None,
    train_config: Mapping[str, ConfigRecordValues] | None = None,
    reference: Reference | None = None,
    score: Scorer | None = None,
    on_finish: Callable[[Result, Context], None] | None = None,
) -> AsyncServerApp:
    """A complete ServerApp.

    initial_model  makes the first model, given Flower's context
    evaluate       scores a model on the server, beside training
    train_config   what every client finds in its message's "config"
    reference, score  trusted data, for the defenses that need them
    on_finish      called once with the result
    """
    app = AsyncServerApp()
    app.initial_model, app.reference, app.score = initial_model, reference, score

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

    def serve(federation: Federation, layout: Layout) -> SessionPool[str]:
        nodes = Nodes(grid, Records(layout, settings, train_config), settings.ttl_seconds, federation.report)
        return SessionPool(nodes, federation, settings, settings.pace())

    with plain_errors():
        return conduct(
            to_arrays(model),
            settings,
            serve,
            evaluate=evaluate,
            reference=reference,
            score=score,
            defense=defense,
            console=console,
        )
