"""What an engine's front costs: nodes that are connected and idle, and nodes at work, with our server behind it.

    python benchmarks/front.py flower 4 16 64          # one SuperLink, so many nodes
    python benchmarks/front.py nvflare 2 4             # one NVFlare server, so many sites
    python benchmarks/front.py sessions 1000 10000     # our own share of idle clients, without an engine
    python benchmarks/front.py simulation 200 --updates 400      # Flower's simulation engine, virtual nodes
    python benchmarks/front.py simulation 10000 --updates 20000  # at full size

Costs are processor time, memory, open files and threads of the server's side alone: the SuperLink or NVFlare's server,
and ours. They hold whatever else the machine does; rates do not, and are given beside the share of a core they had.

Flower's nodes are the SuperNode's own connection (registration, heartbeats, a pull every three seconds, objects pulled
and pushed), all in one process: what they return is computed at once, without a process per message. NVFlare's sites
are real processes. Results go to results/front.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from _common import about  # noqa: E402
from tests.end_to_end import flower_processes, nvflare_processes  # noqa: E402
from tests.end_to_end.child_processes import HOST, command_line  # noqa: E402
from tests.end_to_end.journals import read_journal  # noqa: E402

from secureafl import Layout, Machine  # noqa: E402
from secureafl.engines.engine_settings import EngineSettings  # noqa: E402
from secureafl.engines.sessions import Pace, SessionPool  # noqa: E402
from secureafl.errors import StoreError  # noqa: E402
from secureafl.server import Assignment, Federation  # noqa: E402
from secureafl.server.record.entries import Entry, Event  # noqa: E402

FLOWER_APP = ROOT / "tests" / "end_to_end" / "flower_app"
RESULTS = ROOT / "results" / "front.json"
PULL_SECONDS = 3.0  # how long an idle SuperNode waits between two pulls
PLACES = 4  # `max_in_flight` of the paced run
DIM = 10_000
SETTLE_SECONDS = 10.0  # until a SuperLink that was just started has started its own helpers
TICKS = os.sysconf("SC_CLK_TCK")


class LightNode(threading.Thread):
    """A SuperNode's connection, without the processes that a SuperNode starts."""

    def __init__(self, address: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._stop_event = address, stop
        self.connected = threading.Event()
        self.num_replies = 0
        self.num_pulls = 0

    def run(self) -> None:
        from flwr.supercore.run import RunNotRunningException
        from flwr.supernode.fleet_http_connection import http_request_response

        with http_request_response(self._address, insecure=True) as connection:
            _, receive, send, _, _, pull, push, confirm = connection
            self.connected.set()
            while not self._stop_event.is_set():
                try:
                    received = receive()
                    self.num_pulls += 1
                    if received is not None:
                        self._reply(*received, send, pull, push, confirm)
                        self.num_replies += 1
                        continue
                except RunNotRunningException:  # it ended between two calls
                    pass
                except Exception as error:
                    if not self._stop_event.is_set():
                        print(f"a node's exchange failed: {type(error).__name__}: {error}", file=sys.stderr)
                self._stop_event.wait(PULL_SECONDS)

    def _reply(self, message: Any, tree: Any, send: Any, pull: Any, push: Any, confirm: Any) -> None:
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            iterate_object_tree,
        )
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

        run_id, number = message.metadata.run_id, message.metadata.message_id
        wanted = [part.object_id for part in iterate_object_tree(tree)]
        contents = pull_objects(wanted, pull_object_fn=lambda object_id: pull(run_id, object_id))
        confirm(run_id, number)
        content = inflate_object_from_contents(number, contents).content
        weights = content.array_records["arrays"]["w"].numpy()
        trained = (weights + 0.5 * (1.0 - weights)).astype(np.float32)
        records = {"arrays": ArrayRecord({"w": Array(trained)}), "metrics": MetricRecord({"num-examples": 1})}
        message.content = content
        reply = Message(RecordDict(records), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects, own_tree = get_all_nested_objects(reply), get_object_tree(reply)
        missing, session = send(reply, own_tree, 0.0)
        put = partial(push, run_id, session)
        for part in iterate_object_tree(own_tree):
            if part.object_id in missing:
                put(part.object_id, objects[part.object_id].deflate())


def arrivals(run_dir: Path) -> list[Entry]:
    """Every update that was judged."""
    try:
        return [row for row in read_journal(run_dir) if row.event is Event.ARRIVAL]
    except StoreError:  # the run is just being made
        return []


def usage(pids: Sequence[int]) -> dict[str, float]:
    """Processor seconds so far (also of children that ended), memory, open files and threads of these processes."""
    found = {"cpu": 0.0, "memory_mb": 0.0, "files": 0.0, "threads": 0.0}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found["cpu"] += sum(map(int, fields[11:15])) / TICKS
            found["threads"] += int(fields[17])
            found["memory_mb"] += int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            found["files"] += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:  # it ended meanwhile
            continue
    return found


def spent(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """What stands at the end, and the share of a core that was used."""
    used = after["cpu"] - before["cpu"]
    return {"core_share": used / seconds, "cpu_seconds": used, **{k: v for k, v in after.items() if k != "cpu"}}


def observe(front: Any, seconds: float, count: Any, at_least: int = 0) -> dict[str, Any]:
    """Watch the front so long, and until so many updates came, but never six times as long. `front()` lists its
    processes by part, `count()` the updates so far.
    """
    began, num_before = time.monotonic(), count()
    before = {name: usage(pids) for name, pids in front().items()}
    time.sleep(seconds)
    while count() - num_before < at_least and time.monotonic() - began < 6.0 * seconds:
        time.sleep(0.2)
    took, num_updates = time.monotonic() - began, count() - num_before
    found: dict[str, Any] = {
        name: spent(before.get(name, usage([])), usage(pids), took) for name, pids in front().items()
    }
    found |= {"seconds": took, "updates": num_updates}
    if num_updates:
        used = sum(part["cpu_seconds"] for part in found.values() if isinstance(part, dict))
        found |= {"updates_per_second": num_updates / took, "front_cpu_seconds_per_update": used / num_updates}
    return found


def flower(num_nodes: int, seconds: float) -> dict[str, Any]:
    """Idle without a run; then our server with few places in flight; then with a place for everyone."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(flower_processes.Deployment(directory / "flower"))
        stop = threading.Event()
        nodes = [LightNode(f"{HOST}:{engine.port}", stop) for _ in range(num_nodes)]

        def front() -> dict[str, list[int]]:
            lines = {pid: command_line(pid) for pid in engine.processes()}
            names = {"superlink": ("flower-superlink", "flower-superexec"), "server": ("flwr-serverapp",)}
            return {
                part: [pid for pid, line in lines.items() if any(word in line for word in words)]
                for part, words in names.items()
            }

        time.sleep(SETTLE_SECONDS)
        alone = observe(front, seconds, lambda: 0)
        for node in nodes:
            node.start()
        for node in nodes:
            if not node.connected.wait(120.0):
                raise SystemExit(f"a node was not connected after 120 s; {num_nodes} may be too many for this machine")
        num_pulls = sum(node.num_pulls for node in nodes)
        idle = observe(front, seconds, lambda: 0)
        idle["pulls"] = sum(node.num_pulls for node in nodes) - num_pulls
        extra = idle["superlink"]["cpu_seconds"] - alone["superlink"]["core_share"] * idle["seconds"]
        idle["cpu_seconds_per_pull"] = extra / max(1, idle["pulls"])
        found: dict[str, Any] = {"alone": alone, "idle": idle}
        for name, places in {"paced": PLACES, "working": num_nodes}.items():
            run_dir = directory / name
            config: flower_processes.Config = {
                "dim": DIM,
                "secureafl.run-dir": str(run_dir),
                "secureafl.min-nodes": num_nodes,
                "secureafl.max-in-flight": places,
            }
            engine.submit(FLOWER_APP, config)
            began = sum(node.num_replies for node in nodes)
            while sum(node.num_replies for node in nodes) < began + places:
                time.sleep(0.5)
            found[name] = observe(front, seconds, lambda: sum(node.num_replies for node in nodes), 2 * places)
            engine.end_server()
            while engine.server_process() is not None:
                time.sleep(0.5)
        stop.set()
        return found


def nvflare(num_sites: int, seconds: float) -> dict[str, Any]:
    """Idle without a job, then at work: every site trains in a moment."""
    from secureafl.engines.nvflare import AsyncClient, AsyncServer, federation_recipe

    app = ROOT / "tests" / "end_to_end" / "nvflare_app" / "roles.py"
    sites = [f"site-{number + 1}" for number in range(num_sites)]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        run_dir = directory / "run"
        with nvflare_processes.Deployment(directory / "nvflare", sites) as engine:

            def front() -> dict[str, list[int]]:
                jobs = engine.job_processes()
                return {
                    "parent": [pid for pid in engine.processes(nvflare_processes.SERVER) if pid not in jobs],
                    "job": jobs,
                }

            def count() -> int:
                return len(arrivals(run_dir)) if (run_dir / "head").exists() else 0

            empty = usage(front()["parent"])
            engine.start_sites(*sites, timeout=170.0)
            found: dict[str, Any] = {"parent_alone": empty, "idle": observe(front, seconds, lambda: 0)}
            server = AsyncServer("roles:initial_model", {"run_dir": str(run_dir), "stop_after_seconds": 4.0 * seconds})
            client = AsyncClient("roles:train")
            recipe = federation_recipe("front", server, client, files=[app], min_clients=num_sites)
            job = engine.submit(recipe)
            while count() < num_sites:
                time.sleep(0.5)
            found["working"] = observe(front, seconds, count)
            engine.wait(job, timeout=170.0)
            return found


def simulation(num_nodes: int, num_updates: int, places: int) -> dict[str, Any]:
    """Virtual nodes in Flower's simulation engine, to the end of the run."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with flower_processes.Simulation(directory / "flower") as engine:
            config: flower_processes.Config = {
                "dim": DIM,
                "secureafl.run-dir": str(directory / "run"),
                "secureafl.min-nodes": num_nodes,
                "secureafl.max-in-flight": places,
                "secureafl.stop-after-updates": num_updates,
                "secureafl.stop-after-seconds": 86_400.0,
                "secureafl.snapshot-every": max(5, num_updates // 4),
                "secureafl.evaluate-every": max(5, num_updates // 10),
            }
            began = time.monotonic()
            run = engine.run(FLOWER_APP, config, num_supernodes=num_nodes, timeout=86_400.0)
            took, used = time.monotonic() - began, usage(engine.processes())
        rows = arrivals(directory / "run")
        times = [row.seconds for row in rows]
        return {
            "status": run.status,
            "seconds": took,
            "updates": len(rows),
            "seconds_from_first_to_last_update": times[-1] - times[0],
            "seconds_per_update": (times[-1] - times[0]) / max(1, len(rows) - 1),
            "seconds_until_first_update": took - (times[-1] - times[0]),
            "places": places,
            "clients_heard": len({row.client for row in rows}),
            "cpu_seconds_at_the_end": used["cpu"],
            "memory_mb": used["memory_mb"],
        }


class IdleClients:
    """A carrier with clients that are there and never answer."""

    def __init__(self, num_clients: int) -> None:
        self._names = [str(10**18 + 7 * number) for number in range(num_clients)]  # as long as Flower's

    def present(self) -> list[str]:
        return list(self._names)

    def send(self, assignment: Assignment) -> int:
        return assignment.ticket

    def fetch(self, handle: int, assignment: Assignment) -> None:
        return None

    def close(self) -> None:
        """Nothing to let go of."""


def sessions(num_clients: int) -> dict[str, Any]:
    """Processor time of taking clients in, and of looking for new ones while all but eight are idle."""
    now, passes = 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        settings = EngineSettings(run_dir=Path(folder) / "run", max_in_flight=8)
        layout = Layout.of({"w": np.zeros(DIM, np.float32)})
        machine = Machine(settings.make_defense(DIM), np.zeros(DIM, np.float32), settings.machine())
        federation = Federation(machine, layout, settings)
        pace = Pace(min_clients=num_clients, num_workers=0, poll_seconds=0.05, max_poll_seconds=5.0)
        memory = usage([os.getpid()])["memory_mb"]
        pool = SessionPool(IdleClients(num_clients), federation, settings, pace, clock=lambda: now)
        began = time.process_time()
        pool.advance()
        taken_in = time.process_time() - began
        for _ in range(5):
            now += settings.discovery_seconds
            began = time.process_time()
            pool.advance()
            passes.append(time.process_time() - began)
        memory = usage([os.getpid()])["memory_mb"] - memory
        pool.close()
        federation.close()
    return {
        "cpu_seconds_to_take_in": taken_in,
        "cpu_microseconds_to_take_in_each": 1e6 * taken_in / num_clients,
        "cpu_seconds_per_discovery": min(passes),
        "core_share_while_idle": min(passes) / settings.discovery_seconds,
        "memory_kb_each": 1e3 * memory / num_clients,
    }


def machine() -> dict[str, Any]:
    """What this was measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("flower", "nvflare", "sessions", "simulation"))
    parser.add_argument("nodes", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each state is watched")
    parser.add_argument("--updates", type=int, default=400, help="simulation: updates until the run ends")
    parser.add_argument("--places", type=int, default=8, help="simulation: nodes at work at one time (max-in-flight)")
    given = parser.parse_args()
    for number in given.nodes:
        if given.engine == "flower":
            found = flower(number, given.seconds)
        elif given.engine == "nvflare":
            found = nvflare(number, given.seconds)
        elif given.engine == "sessions":
            found = sessions(number)
        else:
            found = simulation(number, given.updates, given.places)
        entry = {**about(), "machine": machine(), **found}
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        kept.setdefault(given.engine, {})[str(number)] = entry
        RESULTS.write_text(json.dumps(kept, indent=2) + "\n")
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
