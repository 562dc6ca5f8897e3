"""What an engine's front costs: nodes that are connected and idle, and nodes at work, with our server behind it.

    python benchmarks/front.py [--quick]

Flower's nodes are the SuperNode's own connection (registration, heartbeats, a pull every three seconds, objects pulled
and pushed), all in one process: what they return is computed at once, without a process per message. Costs are
processor time, memory, open files and threads of the server's side alone: the SuperLink, and our server. They hold
whatever else the machine does; rates do not. Then our own share of clients that are there and idle, without an engine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from _common import Table, main, memory_mb, processor_seconds  # noqa: E402
from tests.end_to_end import flower_processes  # noqa: E402
from tests.end_to_end.child_processes import HOST, command_line  # noqa: E402

from secureafl import Layout, Machine  # noqa: E402
from secureafl.engines.engine_settings import EngineSettings  # noqa: E402
from secureafl.engines.sessions import Pace, SessionPool  # noqa: E402
from secureafl.server import Assignment, Federation  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOWER_APP = ROOT / "tests" / "end_to_end" / "flower_app"
PULL_SECONDS = 3.0  # how long an idle SuperNode waits between two pulls
DIM = 10_000
NODES, SECONDS, SETTLE_SECONDS = (4, 16, 64), 20.0, 10.0  # until a SuperLink has started its own helpers
QUICK_NODES, QUICK_SECONDS = (2,), 3.0
SESSIONS = (1_000, 10_000, 100_000)
QUICK_SESSIONS = (100, 1_000)


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
        whole: Any = inflate_object_from_contents(number, contents)
        content = whole.content
        weights = content.array_records["arrays"]["w"].numpy()
        trained = (weights + 0.5 * (1.0 - weights)).astype(np.float32)
        records: Any = {"arrays": ArrayRecord({"w": Array(trained)}), "metrics": MetricRecord({"num-examples": 1})}
        message.content = content
        reply = Message(RecordDict(records), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects, own_tree = get_all_nested_objects(reply), get_object_tree(reply)
        missing, session = send(reply, own_tree, 0.0)
        put = partial(push, run_id, session)
        for part in iterate_object_tree(own_tree):
            if part.object_id in missing:
                put(part.object_id, objects[part.object_id].deflate())


def usage(pids: Sequence[int]) -> dict[str, float]:
    """Processor seconds so far (also of children that ended), memory, open files and threads of these processes."""
    found = {"cpu": 0.0, "memory_mb": 0.0, "files": 0.0, "threads": 0.0}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found["threads"] += int(fields[17])
            found["memory_mb"] += int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            found["files"] += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:  # it ended meanwhile
            continue
        found["cpu"] += processor_seconds(pid)
    return found


def spent(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """What stands at the end, and the share of a core that was used."""
    used = after["cpu"] - before["cpu"]
    return {"core_share": used / seconds, "cpu_seconds": used, **{k: v for k, v in after.items() if k != "cpu"}}


def observe(
    front: Callable[[], dict[str, list[int]]], seconds: float, count: Callable[[], int], at_least: int = 0
) -> dict[str, Any]:
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
    """A SuperLink alone; with all nodes connected and idle; then our server with a place for everyone."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(flower_processes.Deployment(directory / "flower"))
        stop = threading.Event()
        stack.callback(stop.set)
        nodes = [LightNode(f"{HOST}:{engine.port}", stop) for _ in range(num_nodes)]

        def front() -> dict[str, list[int]]:
            lines = {pid: command_line(pid) for pid in engine.processes()}
            names = {"superlink": ("flower-superlink", "flower-superexec"), "server": ("flwr-serverapp",)}
            return {
                part: [pid for pid, line in lines.items() if any(word in line for word in words)]
                for part, words in names.items()
            }

        def replies() -> int:
            return sum(node.num_replies for node in nodes)

        time.sleep(min(seconds, SETTLE_SECONDS))
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
        config: flower_processes.Config = {
            "dim": DIM,
            "secureafl.run-dir": str(directory / "run"),
            "secureafl.min-nodes": num_nodes,
            "secureafl.max-in-flight": num_nodes,
        }
        engine.submit(FLOWER_APP, config)
        while replies() < num_nodes:
            time.sleep(0.5)
        working = observe(front, seconds, replies, 2 * num_nodes)
        engine.end_server()
        return {"nodes": num_nodes, "alone": alone, "idle": idle, "working": working}


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
        memory = memory_mb("VmRSS")
        pool = SessionPool(IdleClients(num_clients), federation, settings, pace, clock=lambda: now)
        began = time.process_time()
        pool.advance()
        taken_in = time.process_time() - began
        for _ in range(5):
            now += settings.discovery_seconds
            began = time.process_time()
            pool.advance()
            passes.append(time.process_time() - began)
        memory = memory_mb("VmRSS") - memory
        pool.close()
        federation.close()
    return {
        "clients": num_clients,
        "cpu_microseconds_to_take_in_each": 1e6 * taken_in / num_clients,
        "cpu_seconds_per_discovery": min(passes),
        "discovery_seconds": settings.discovery_seconds,
        "memory_kb_each": 1e3 * memory / num_clients,
    }


def measure(quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"flower": [], "sessions": [sessions(n) for n in (QUICK_SESSIONS if quick else SESSIONS)]}
    for num_nodes in QUICK_NODES if quick else NODES:
        found["flower"].append(flower(num_nodes, QUICK_SECONDS if quick else SECONDS))
        print(found["flower"][-1], flush=True)
    return found


def tables(results: dict[str, Any]) -> list[Table]:
    nodes, own = results["flower"], results["sessions"]
    of_flower = [
        (
            "SuperLink without a node, share of a core",
            *(f"{one['alone']['superlink']['core_share']:.3f}" for one in nodes),
        ),
        (
            "all connected and idle, share of a core",
            *(f"{one['idle']['superlink']['core_share']:.3f}" for one in nodes),
        ),
        (
            "processor time of one pull of an idle node",
            *(f"{1e3 * one['idle']['cpu_seconds_per_pull']:.0f} ms" for one in nodes),
        ),
        (
            f"all at work: SuperLink and our server, processor time of one update of {DIM:,} parameters",
            *(f"{one['working'].get('front_cpu_seconds_per_update', float('nan')):.2f} s" for one in nodes),
        ),
        ("SuperLink's memory, idle", *(f"{one['idle']['superlink']['memory_mb']:.0f} MB" for one in nodes)),
        ("SuperLink's open files, idle", *(f"{one['idle']['superlink']['files']:.0f}" for one in nodes)),
    ]
    of_sessions = [
        ("processor time to take in each", *(f"{one['cpu_microseconds_to_take_in_each']:.0f} µs" for one in own)),
        (
            f"processor time to look for new ones, every {own[0]['discovery_seconds']:.0f} s",
            *(f"{1e3 * one['cpu_seconds_per_discovery']:.2g} ms" for one in own),
        ),
        ("memory of each", *(f"{one['memory_kb_each']:.2g} kB" for one in own)),
    ]
    return [
        Table(("Flower", *(f"{one['nodes']} nodes" for one in nodes)), of_flower),
        Table(("our own share", *(f"{one['clients']:,} idle clients" for one in own)), of_sessions),
    ]


def draw(results: dict[str, Any]) -> tuple[Figure, str]:
    from matplotlib.figure import Figure

    figure = Figure((9.6, 2.8), layout="constrained")
    share, updates = figure.subplots(1, 2)
    nodes = results["flower"]
    numbers = [one["nodes"] for one in nodes]
    for state, label in (("idle", "connected and idle"), ("alone", "without a node")):
        share.plot(numbers, [one[state]["superlink"]["core_share"] for one in nodes], "-o", label=label)
    share.set(xlabel="nodes", ylabel="the SuperLink's share of a core", ylim=(0, None))
    share.legend(fontsize="small")
    bottom = [0.0] * len(nodes)
    for part, label in (("superlink", "SuperLink"), ("server", "our server")):
        each = [one["working"][part]["cpu_seconds"] / max(1, one["working"]["updates"]) for one in nodes]
        updates.bar([str(number) for number in numbers], each, bottom=bottom, label=label)
        bottom = each
    updates.set(xlabel="nodes at work", ylabel="processor seconds of an update")
    updates.legend(fontsize="small")
    return figure, "What Flower's nodes cost the server's side: connected and idle, and at work."


if __name__ == "__main__":
    main(__doc__, "front", measure, tables, draw)
