"""An asynchronous, poisoning-robust server for NVFlare's Collab API.

    AsyncServer(model="task:initial_model", evaluate="task:accuracy", settings={"stop_after_updates": 500})

or, in a server of your own, `run_federation` within its `@collab.main`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from secureafl.defenses import Defense, Reference, Scorer
from secureafl.engines.nvflare.app_settings import NVFlareSettings
from secureafl.engines.nvflare.carrier import Sites
from secureafl.engines.nvflare.codec import Messages
from secureafl.engines.nvflare.collab import Context, Proxy, current_context, main
from secureafl.engines.nvflare.functions import load_function
from secureafl.engines.running import conduct
from secureafl.engines.sessions import Pace, SessionPool
from secureafl.layout import Layout, to_arrays
from secureafl.server import Federation, Result
from secureafl.server.live.evaluation import Evaluate

ABORT_SECONDS = 0.2


class AsyncServer:
    """A complete server. Functions are named "module:function", because NVFlare sends jobs as data.

    model         makes the first model: a PyTorch `state_dict`, or a mapping of names to NumPy arrays
    settings      those of `NVFlareSettings`
    evaluate      scores a model on the server, beside training
    train_config  what every client finds in its config
    reference, score  trusted data, for the defenses that need them
    on_finish     called once with the result
    """

    def __init__(
        self,
        model: str,
        settings: dict[str, Any] | None = None,
        evaluate: str = "",
        train_config: dict[str, Any] | None = None,
        reference: str = "",
        score: str = "",
        on_finish: str = "",
    ) -> None:
        self.model = model
        self.settings = settings
        self.evaluate = evaluate
        self.train_config = train_config
        self.reference = reference
        self.score = score
        self.on_finish = on_finish
        NVFlareSettings(**(settings or {}))  # a mistake is best found before the job is sent

    @main
    def run(self) -> None:
        """Train until a stop condition holds or the job is aborted."""
        result = run_federation(
            load_function(self.model)(),
            NVFlareSettings(**(self.settings or {})),
            evaluate=load_function(self.evaluate) if self.evaluate else None,
            train_config=self.train_config,
            reference=load_function(self.reference) if self.reference else None,
            score=load_function(self.score) if self.score else None,
        )
        if self.on_finish:
            load_function(self.on_finish)(result)


def run_federation(
    model: Any,
    settings: NVFlareSettings,
    *,
    evaluate: Evaluate | None = None,
    train_config: Mapping[str, Any] | None = None,
    reference: Reference | None = None,
    score: Scorer | None = None,
    defense: Defense | None = None,
    console: Console | None = None,
) -> Result:
    """Train `model` with the job's clients until a stop condition holds, a signal comes, or the job is aborted.

    Call it within `@collab.main`. `defense` takes the place of the one the settings name: for a rule of your own.
    """
    context = current_context()
    proxies = context.clients

    def serve(federation: Federation, layout: Layout) -> SitePool:
        return SitePool(proxies, context, federation, Messages(layout, settings, train_config), settings)

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


class SitePool:
    """Keeps every site busy, and ends the federation when NVFlare aborts the job."""

    def __init__(
        self,
        proxies: list[Proxy],
        context: Context,
        federation: Federation,
        messages: Messages,
        settings: NVFlareSettings,
    ) -> None:
        pace = Pace(min_clients=settings.min_clients, num_workers=settings.max_in_flight or len(proxies))
        sites = Sites(proxies, context, messages, settings, federation.report)
        self._pool = SessionPool(sites, federation, settings, pace)
        self._context = context
        self._federation = federation
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._stop_when_aborted, daemon=True)
        self._watch.start()

    def close(self) -> None:
        """Leave all sites alone."""
        self._closed.set()
        self._pool.close()
        self._watch.join()

    def _stop_when_aborted(self) -> None:
        while not self._closed.wait(ABORT_SECONDS):
            if self._context.is_aborted():
                self._federation.stop()
                return
