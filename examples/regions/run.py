"""Two regions of four clients each and one top, as real Flower processes on this machine.

    python run.py                       # a few minutes; everything is in ./runs afterwards
    secureafl audit runs/region-0       # who was rejected in the first region, and why

Three SuperLinks, eight SuperNodes of clients, and two SuperNodes that are a region each. The first client of the first
region is malicious.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from secureafl.server.record.entries import Event
from secureafl.server.review.opened import RecordedRun

HOST = "127.0.0.1"
APP = Path(__file__).parent
NUM_REGIONS, CLIENTS_EACH = 2, 4
TOP, REGIONS = "top", [f"region-{place}" for place in range(NUM_REGIONS)]


class Flower:
    """SuperLinks and SuperNodes; they end when the `with` block does."""

    def __init__(self, runs: Path, stack: ExitStack) -> None:
        self._runs, self._stack = runs, stack
        self._ports = {name: free_port() for name in (TOP, *REGIONS)}
        home = runs / "flwr-home"
        home.mkdir(parents=True)
        links = [
            f'[superlink.{name}]\naddress = "{HOST}:{port}"\ninsecure = true\n' for name, port in self._ports.items()
        ]
        (home / "config.toml").write_text(f'[superlink]\ndefault = "{TOP}"\n{"".join(links)}')
        self._env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FLWR_HOME": str(home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }

    def start_link(self, name: str) -> None:
        """A SuperLink, and wait until it is there."""
        port = self._ports[name]
        self._start(f"link-{name}", "flower-superlink", "--insecure", "--host", HOST, "--port", str(port))
        deadline = time.monotonic() + 300.0
        while not healthy(port):
            if time.monotonic() > deadline:
                raise SystemExit(f"SuperLink {name} did not start: see {self._runs}/link-{name}.log")
            time.sleep(0.2)

    def start_node(self, link: str, name: str, node_config: dict[str, str | int | bool]) -> None:
        """A SuperNode of this SuperLink."""
        warm = ["secureafl", "warm", "--import", "secureafl.engines.flower.client", "--"]  # training takes no time here
        command = ["flower-supernode", "--insecure", "--superlink", f"{HOST}:{self._ports[link]}"]
        self._start(f"node-{name}", *warm, *command, "--port", str(free_port()), "--node-config", pairs(node_config))

    def run(self, link: str, **settings: str | int | float) -> str:
        """Start the app on this SuperLink; its run's id."""
        config = {f"secureafl.{name.replace('_', '-')}": value for name, value in settings.items()}
        started = self._flwr("run", str(APP), link, "--run-config", pairs(config))
        return str(started["run-id"])

    def wait(self, link: str, run_id: str) -> str:
        """Flower's word for how the run ended."""
        while True:
            status = str(self._flwr("ls", link, "--run-id", run_id)["runs"][0]["status"])
            if status.startswith("finished"):
                return status
            time.sleep(5.0)

    def stop(self, link: str, run_id: str) -> None:
        """End a run that would go on."""
        self._flwr("stop", run_id, link)

    def _flwr(self, *arguments: str) -> dict[str, list[dict[str, object]]]:
        done = subprocess.run(["flwr", *arguments, "--format", "json"], env=self._env, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"flwr {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return dict(json.loads(done.stdout[done.stdout.index("{") :]))

    def _start(self, name: str, *command: str) -> None:
        with (self._runs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log, start_new_session=True)
        self._stack.callback(end, process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="a new folder for all that comes of it")
    parser.add_argument("--reports", type=int, default=8, help="reports of regions after which the top is finished")
    parser.add_argument("--report-every", type=int, default=8, help="updates of clients that make a report")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever stops it stops what it started
    out = given.out.absolute()
    with ExitStack() as stack:
        flower = Flower(out, stack)
        for link in (TOP, *REGIONS):
            flower.start_link(link)
        for place, region in enumerate(REGIONS):
            flower.start_node(TOP, region, {"region-dir": str(out / f"{region}-folder")})
            for client in range(CLIENTS_EACH):
                number = place * CLIENTS_EACH + client
                flower.start_node(region, f"client-{number}", {"partition-id": number, "malicious": number == 0})
        print("SuperLinks and SuperNodes are started; the regions begin", flush=True)
        running = {
            region: flower.run(
                region,
                run_dir=str(out / region),
                region_dir=str(out / f"{region}-folder"),
                upstream=TOP,
                report_every=given.report_every,
                min_nodes=CLIENTS_EACH,
            )
            for region in REGIONS
        }
        run_id = flower.run(TOP, run_dir=str(out / TOP), min_nodes=NUM_REGIONS, stop_after_updates=given.reports)
        status = flower.wait(TOP, run_id)
        for region, number in running.items():
            flower.stop(region, number)
    print(f"top: {status}")
    for name in (TOP, *REGIONS):
        tell(name, out / name)
    if status != "finished:completed":
        raise SystemExit(1)


def tell(name: str, run_dir: Path) -> None:
    """What a server made of each of its clients."""
    run = RecordedRun.open(run_dir)
    counts: dict[str, dict[str, int]] = {}
    for row in run.journal.entries(Event.ARRIVAL):
        reasons = counts.setdefault(row.client, {})
        reasons[row.reason] = reasons.get(row.reason, 0) + 1
    run.journal.close()
    for client, reasons in counts.items():
        print(f"{name}: {client}: {', '.join(f'{count} {reason}' for reason, count in reasons.items())}")


def pairs(config: dict[str, str | int | bool] | dict[str, str | int | float]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
