"""One federation from its first model to its result, on whichever engine serves the clients."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

from rich.console import Console

from secureafl.defenses import Defense, Reference, Scorer
from secureafl.engines.batch_norm import running_statistics_warning
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.region_folder import RegionFolder
from secureafl.engines.reporting import check_reporting, reporting
from secureafl.engines.uplink import Uplink
from secureafl.fitted import PlainConsole
from secureafl.layout import Layout
from secureafl.server import Federation, Machine, Result
from secureafl.server.live.evaluation import Evaluate
from secureafl.server.record.names import NAMES, ClientNames, read_names
from secureafl.server.record.resumption import is_asked_to_resume
from secureafl.server.record.run import Origin
from secureafl.server.report.progress import Progress, closing_table
from secureafl.types import NamedArrays


class Closable(Protocol):
    """What serves clients until it is closed."""

    def close(self) -> None:
        """Leave all clients alone."""


def conduct(
    arrays: NamedArrays,
    settings: EngineSettings,
    serve: Callable[[Federation, Layout], Closable],
    *,
    evaluate: Evaluate | None = None,
    reference: Reference | None = None,
    score: Scorer | None = None,
    defense: Defense | None = None,
    console: Console | None = None,
) -> Result:
    """Train the model in `arrays` with the clients that `serve` brings, until a stop condition holds or a signal comes.

    `defense` takes the place of the one the settings name: for a rule of your own.
    """
    check_reporting(settings)
    if not settings.resume and is_asked_to_resume(settings.store()):
        settings = settings.model_copy(update={"resume": True})
    names = ClientNames() if settings.names_file is None else read_names(settings.names_file)
    layout = Layout.of(arrays)
    origin = Origin.on_record(settings.run_dir) if settings.resume else Origin.drawn()
    defense = defense or settings.make_defense(layout.dim, seed=origin.seed, reference=reference, score=score)
    machine = Machine(defense, layout.flatten(arrays), settings.machine(count_refused=origin.count_refused))
    console = console or PlainConsole()
    if warning := running_statistics_warning(layout, settings.client_returns):
        console.print(warning, markup=False, highlight=False, soft_wrap=True)
    progress = Progress(console, settings.defense, settings.stop_after_updates, waiting=settings.waiting_for())
    federation = Federation(machine, layout, settings, evaluate=evaluate, report=progress, seed=origin.seed)
    if (memory := machine.client_memory()) is not None:
        console.print(f"memory for clients: {memory}", markup=False, highlight=False, soft_wrap=True)
    if settings.resume:  # a new run of the engine: dispatches of the old one can no longer be answered
        federation.withdraw_all("the server restarted")
    with contextlib.ExitStack() as stack:
        stack.callback(federation.close)
        if settings.names_file is not None:
            federation.keep_file(NAMES, settings.names_file.read_bytes())
        stack.enter_context(reporting(federation, settings, console))
        if settings.region_dir is not None:
            stack.callback(Uplink(RegionFolder(settings.region_dir), federation, layout, settings).close)
        stack.callback(serve(federation, layout).close)
        with _stopped_by_signals(federation):
            result = federation.run()
    console.print(closing_table(result, settings.defense, place=settings.run_dir, names=names))
    return result


@contextlib.contextmanager
def _stopped_by_signals(federation: Federation) -> Iterator[None]:
    """The first SIGTERM or SIGINT ends the run in order; a second one does what it did before."""
    if threading.current_thread() is not threading.main_thread():  # the engine's own: signals are not ours
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
