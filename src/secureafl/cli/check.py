"""`secureafl check`: what would go wrong with an app, said before anything starts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import shutil
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secureafl.cli.new import SIMULATION
from secureafl.defenses import Reference, Scorer
from secureafl.errors import SecureAFLError, SettingsError, StoreError
from secureafl.layout import Layout
from secureafl.plugins import load_object
from secureafl.server import Machine, Run
from secureafl.server.record.resumption import is_asked_to_resume
from secureafl.server.report.sinks import check_sinks
from secureafl.settings import flattened
from secureafl.types import NamedArrays

if TYPE_CHECKING:
    from secureafl.engines.engine_settings import EngineSettings

FLOAT_BYTES = 4
EXAMPLE_CLIENTS, EXAMPLE_UPDATES = 10, 1000


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """The app runs, but its owner should know."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, in plain words."""

    level: Level
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class App:
    """What is known of an app before it runs."""

    settings: EngineSettings
    spelling: str
    """How this app writes a setting's name: with `-` or with `_`."""
    lists_resume: bool
    reference: Reference | None = None
    score: Scorer | None = None
    model: NamedArrays | None = None
    why_no_model: str = ""

    def name(self, setting: str) -> str:
        """The setting as this app writes it."""
        return setting.replace("_", self.spelling)


def check_app(place: Path, *, num_clients: int | None = None, num_parameters: int | None = None) -> Iterator[Finding]:
    """Look at everything that can be known beforehand; what comes first is found first."""
    try:
        app = read_app(place)
    except SecureAFLError as error:
        yield Finding(Level.PROBLEM, "settings", str(error))
        return
    settings = app.settings
    yield Finding(Level.OK, "settings", f"every setting exists; defense {settings.defense}")
    yield from _simulation(app)
    yield from _end(app)
    yield from _keys(app)
    yield from _metrics(app)
    yield from _record(app)
    layout = None
    if app.model is not None:
        try:
            layout = Layout.of(app.model)
        except SecureAFLError as error:
            yield Finding(Level.PROBLEM, "model", str(error))
            return
        yield from _model(app, layout)
    dim = layout.dim if layout is not None else num_parameters
    if dim is None:
        yield Finding(Level.NOTE, "model", f"{app.why_no_model}: say how large it is with --parameters N")
        return
    yield from _defense(app, dim)
    yield from _room(app, dim, num_clients)


# Reading an app


def read_app(place: Path) -> App:
    """The app in this folder: a Flower app, or an NVFlare job (its `job.py`, or any file by name)."""
    if place.is_file() and place.suffix == ".py":
        return _read_job(place)
    if (project := place / "pyproject.toml").exists() and "flwr" in _toml(project).get("tool", {}):
        return _read_flower(place, _toml(project)["tool"]["flwr"])
    if (job := place / "job.py").exists():
        return _read_job(job)
    raise SettingsError(
        f"{place} holds no app: there is neither a pyproject.toml with [tool.flwr] nor a job.py in it;"
        " make one with: secureafl new my-app"
    )


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML file: {error}") from None


def _read_flower(place: Path, table: Mapping[str, Any]) -> App:
    from flwr.app import Context, RecordDict

    from secureafl.engines.flower import read_run_config
    from secureafl.engines.flower.app import AsyncServerApp
    from secureafl.engines.flower.contents import to_arrays

    config = dict(flattened(table.get("app", {}).get("config", {})))
    found = App(read_run_config(config), "-", "secureafl.resume" in config)
    name = table.get("app", {}).get("components", {}).get("serverapp", "")
    with _importing_from(place):
        server = load_object(name, f"look at [tool.flwr.app.components] in {place / 'pyproject.toml'}")
        if not isinstance(server, AsyncServerApp):
            return _with(found, why_no_model=f"{name} was not made by server_app, so its model is not known")
        context = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config=config)
        model = _called(f"the first model of {name}", lambda: to_arrays(server.initial_model(context)))
    return _with(found, model=model, reference=server.reference, score=server.score)


def _read_job(path: Path) -> App:
    from secureafl.engines.nvflare import AsyncServer, NVFlareSettings
    from secureafl.layout import to_arrays

    with _importing_from(path.parent):
        try:
            names = runpy.run_path(str(path), run_name="secureafl check")
            servers = [value for value in names.values() if isinstance(value, AsyncServer)]
            if not servers and callable(names.get("server")):
                servers = [names["server"]()]
        except SecureAFLError:
            raise
        except Exception as error:
            raise SettingsError(f"{path}: {type(error).__name__}: {error}") from error
        if not servers or not isinstance(servers[0], AsyncServer):
            raise SettingsError(
                f"{path} shows no server: give it a function `server()` that returns an AsyncServer, and start the job"
                ' under `if __name__ == "__main__"`'
            )
        server = servers[0]
        model = _called(f"the first model, {server.model}", lambda: to_arrays(load_object(server.model)()))
        return App(
            NVFlareSettings(**(server.settings or {})),
            "_",
            lists_resume=True,
            reference=load_object(server.reference) if server.reference else None,
            score=load_object(server.score) if server.score else None,
            model=model,
        )


def _called(what: str, function: Any) -> Any:
    """What a function of the user's returns; its failure in one line."""
    try:
        return function()
    except SecureAFLError:
        raise
    except Exception as error:
        raise SettingsError(f"{what} cannot be made: {type(error).__name__}: {error}") from error


def _with(app: App, **changes: Any) -> App:
    return App(**{name: getattr(app, name) for name in App.__slots__} | changes)


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder.absolute()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.absolute()))


# Looking at it


def _simulation(app: App) -> Iterator[Finding]:
    if app.spelling == "-" and importlib.util.find_spec("ray") is None:
        yield Finding(Level.NOTE, "engine", f"Flower simulates with Ray, which is missing: {SIMULATION}")


def _end(app: App) -> Iterator[Finding]:
    settings = app.settings
    if settings.stop_after_updates is not None:
        yield Finding(Level.OK, "end", f"after {settings.stop_after_updates:,} updates")
    elif settings.stop_after_seconds is None and settings.stop_at_metric is None:
        wanted = app.name("stop_after_updates")
        yield Finding(Level.NOTE, "end", f"none: the run goes on until it is stopped; set {wanted} for one")


def _keys(app: App) -> Iterator[Finding]:
    settings = app.settings
    if settings.keys_file is None:
        yield Finding(Level.NOTE, "keys", f"updates need not be signed; {app.name('keys_file')} asks for it")
        return
    if importlib.util.find_spec("cryptography") is None:
        yield Finding(Level.PROBLEM, "keys", 'signed updates need one more package: pip install "secureafl[ops]"')
        return
    from secureafl.engines.signing import read_keys

    try:
        keys = read_keys(settings.keys_file)
    except SettingsError as error:
        yield Finding(Level.PROBLEM, "keys", str(error))
        return
    needed = _min_clients(settings)
    if len(keys) < needed:
        text = f"{settings.keys_file} has {len(keys)} keys, and {needed} clients have to be there: add the others'"
        yield Finding(Level.PROBLEM, "keys", text)
    else:
        yield Finding(Level.OK, "keys", f"{len(keys)} public keys in {settings.keys_file}")


def _metrics(app: App) -> Iterator[Finding]:
    settings = app.settings
    try:
        check_sinks(settings.sinks)
    except SecureAFLError as error:
        yield Finding(Level.PROBLEM, "sinks", str(error))
    if not settings.metrics_port:
        return
    name, address = app.name("metrics_port"), f"{settings.metrics_host}:{settings.metrics_port}"
    if importlib.util.find_spec("prometheus_client") is None:
        yield Finding(Level.PROBLEM, "port", f'{name} needs one more package: pip install "secureafl[ops]"')
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.metrics_host, settings.metrics_port))
        except OSError as error:
            text = f"{address} cannot be opened ({error.strerror}): stop what uses it, or set another {name}"
            yield Finding(Level.PROBLEM, "port", text)
        else:
            yield Finding(Level.OK, "port", f"{address} is free, for metrics")


def _record(app: App) -> Iterator[Finding]:
    settings, name = app.settings, app.name("run_dir")
    place = settings.run_dir
    if place is None:
        text = f"nothing is kept: a crash loses the run, and there is nothing to audit; set {name}"
        yield Finding(Level.NOTE, "record", text)
        return
    if isinstance(place, Path) and not place.is_absolute():
        text = f"{name} = {place} counts from where the engine starts the server: better write a whole path"
        yield Finding(Level.NOTE, "record", text)
        place = None if not place.exists() else place
    try:
        store = settings.store()
        assert store is not None
        if isinstance(place, Path) and not os.access(_existing(place), os.W_OK | os.X_OK):
            yield Finding(Level.PROBLEM, "record", f"{_existing(place)} cannot be written to: choose another {name}")
        elif not store.has_run():
            if settings.resume:
                text = f"there is no run to resume in {store}; leave {app.name('resume')} out the first time"
                yield Finding(Level.PROBLEM, "record", text)
            else:
                yield Finding(Level.OK, "record", f"a new run in {store}")
        elif store.is_held():
            yield Finding(
                Level.PROBLEM, "record", f"another server has the run in {store} now: wait for it, or stop it"
            )
        elif settings.resume or is_asked_to_resume(store):
            yield Finding(Level.OK, "record", f"goes on with the run in {store}")
        else:
            text = f"{store} already holds a run: go on with it (secureafl resume {store}), or set another {name}"
            yield Finding(Level.PROBLEM, "record", text)
    except StoreError as error:
        yield Finding(Level.PROBLEM, "record", str(error))
    if not app.lists_resume:
        text = (
            "pyproject.toml does not list secureafl.resume, so Flower will refuse --run-config 'secureafl.resume=true':"
            f" add resume = false, or use: secureafl resume {settings.run_dir}"
        )
        yield Finding(Level.NOTE, "resume", text)


def _model(app: App, layout: Layout) -> Iterator[Finding]:
    from secureafl.engines.batch_norm import running_statistics_warning

    yield Finding(Level.OK, "model", f"{layout.dim:,} parameters in {len(layout.entries)} arrays")
    if warning := running_statistics_warning(layout, app.settings.client_returns):
        yield Finding(Level.NOTE, "model", warning.removeprefix("warning: "))


def _defense(app: App, dim: int) -> Iterator[Finding]:
    try:
        app.settings.make_defense(dim, reference=app.reference, score=app.score)
    except SecureAFLError as error:
        yield Finding(Level.PROBLEM, "defense", str(error))


def _room(app: App, dim: int, num_clients: int | None) -> Iterator[Finding]:
    """Memory for the rows, disk for the journal."""
    settings = app.settings
    clients = num_clients or max(_min_clients(settings), EXAMPLE_CLIENTS)
    said = f"{clients:,} clients" + ("" if num_clients else " (for more, say --clients N)")
    try:
        state = state_bytes(app, dim, clients)
    except Exception:  # a defense that needs trusted data of the model's own shape, or one of the user's own
        state = None
    if state is not None:
        rows, models = state, clients * dim * FLOAT_BYTES
        text = f"{size(rows)} for {said}, and up to {size(models)} for models under way"
        free = free_memory()
        level, rest = _enough(rows + models, free, "free")
        yield Finding(level, "memory", f"{text}; {rest}")
    if not isinstance(settings.run_dir, Path):
        return
    updates = settings.stop_after_updates or EXAMPLE_UPDATES
    journal = updates * dim * FLOAT_BYTES if settings.journal == "full" else 0
    if settings.max_journal_bytes is not None:
        journal = min(journal, settings.max_journal_bytes)
    snapshots = (settings.keep_snapshots + 1) * (state or dim * FLOAT_BYTES)
    per = "" if settings.stop_after_updates else f" for every {EXAMPLE_UPDATES:,} updates"
    text = f"{size(journal)} of updates{per}, and {size(snapshots)} of snapshots"
    level, rest = _enough(journal + snapshots, shutil.disk_usage(_existing(settings.run_dir)).free, "free on that disk")
    hint = f"; {app.name('max_journal_bytes')} sets a limit" if level is Level.PROBLEM else ""
    yield Finding(level, "disk", f"{text}; {rest}{hint}")


def _enough(needed: float, there: float, where: str) -> tuple[Level, str]:
    if needed > there:
        return Level.PROBLEM, f"only {size(there)} are {where}"
    return (Level.NOTE if needed > 0.5 * there else Level.OK), f"{size(there)} are {where}"


def state_bytes(app: App, dim: int, clients: int) -> float:
    """What the server keeps for so many clients: measured on small models, as it grows with both numbers alike."""
    few, many, narrow, wide = 16, 24, 256, 1024  # more than ten are compared; sketches are in blocks of eight
    corner = {(n, d): _measured(app, d, n) for n in (few, many) for d in (narrow, wide)}
    both = (corner[many, wide] - corner[few, wide] - corner[many, narrow] + corner[few, narrow]) / (
        (many - few) * (wide - narrow)
    )
    per_client = (corner[many, narrow] - corner[few, narrow]) / (many - few) - both * narrow
    per_parameter = (corner[few, wide] - corner[few, narrow]) / (wide - narrow) - both * few
    fixed = corner[few, narrow] - per_client * few - per_parameter * narrow - both * few * narrow
    return fixed + per_client * clients + per_parameter * dim + both * clients * dim


def _measured(app: App, dim: int, clients: int) -> int:
    """Bytes of the state after each of the clients was heard twice."""
    defense = app.settings.make_defense(dim, reference=app.reference, score=app.score)
    run = Run(Machine(defense, np.zeros(dim, np.float32), app.settings.machine()))
    rng = np.random.default_rng(0)
    for arrival in range(2 * clients):
        ticket = run.issue(str(arrival % clients))
        run.receive(ticket.number, rng.normal(size=dim).astype(np.float32))
    state = run.machine.state_dict()
    run.close()
    return sum(array.nbytes for array in _arrays(state))


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _arrays(inner)
    elif isinstance(value, np.ndarray):
        yield value


def _min_clients(settings: EngineSettings) -> int:
    return int(getattr(settings, "min_nodes", 0) or getattr(settings, "min_clients", 1))


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path if path.is_dir() else path.parent


def free_memory() -> float:
    """Bytes that a new process may have; as many as the machine has if it does not say."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.3g} {unit}" if count < 1000 * factor else f"{count / factor:,.0f} {unit}"
    return f"{count:.0f} bytes"
