"""Real Flower processes for end-to-end tests, on both engines.

`Deployment` is a SuperLink with SuperNodes, with TLS and node keys or without; `Simulation` is `flwr run . sim` with
its own local SuperLink. Both run an app until Flower says `finished:*` and leave no process behind. Every child
carries a marker of this harness in its environment, so that leftovers are found in /proc and ended by pid (Linux).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from tests.end_to_end.child_processes import (
    HOST,
    Process,
    ProcessFailedError,
    command_line,
    end_processes,
    find_processes,
    free_port,
    tail,
)
from tests.end_to_end.flower_keys import write_certificates, write_node_key

Config: TypeAlias = Mapping[str, str | int | float | bool]

MARKER = "FLOWER_PROCESSES"
OF_THE_TEST_APP = ("secureafl.engines.flower.client", "numpy")
"""What the ClientApp of `flower_app` imports, for nodes that start it warm."""
STATUS_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: `status` is Flower's word for it, such as `finished:completed`."""

    run_id: int
    status: str
    seconds: float
    log: Path

    def log_text(self) -> str:
        """What the ServerApp printed and logged."""
        return self.log.read_text()


class Node(Process):
    """A SuperNode."""

    @property
    def node_id(self) -> int:
        """The id the SuperLink gave, or 0 before that; it survives a restart only with node keys."""
        found = re.search(r"SuperNode ID: (\d+)", self.log.read_text(errors="replace"))
        return int(found[1]) if found else 0

    def wait_active(self, deadline: float) -> bool:
        """True with an id from the SuperLink, False if it refused to activate the node."""
        try:
            self.wait_ready(lambda: self.node_id > 0, deadline - time.monotonic())
        except ProcessFailedError:
            if "Failed to activate SuperNode" not in self.log.read_text() or time.monotonic() > deadline:
                raise
            return False
        return True


class Engine:
    """What both engines share: an isolated FLWR_HOME, the `flwr` command, runs, and the sweep at the end."""

    connection: str
    superlink: Process
    superlink_log: Path
    tls = False

    def __init__(self, directory: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.home = directory / "flwr-home"
        self.home.mkdir(parents=True)
        self.port = free_port()
        self.ca = directory / "ca.crt"
        self._ray_directory = tempfile.mkdtemp(prefix="ray-")  # short: Ray's socket paths must stay below 107 bytes
        self._marker = uuid.uuid4().hex
        self.env = {
            **os.environ,
            # Flower finds its own commands on PATH only.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # 1.0 waits longer, 0.05 costs more than it saves
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.port),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on 127.0.0.1
            "RAY_TMPDIR": self._ray_directory,
            MARKER: self._marker,
            **(env or {}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_superlink(self, command: list[str], cwd: Path | None = None) -> None:
        self.superlink = Process(command, self.env, self.superlink_log, cwd)
        try:
            self.superlink.wait_ready(self._healthy, 120.0)
        except ProcessFailedError:
            self.close()
            raise

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.ca)) if self.tls else None
        url = f"{'https' if self.tls else 'http'}://{HOST}:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=2.0, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def close(self) -> None:
        """End every process that carries our marker, whatever started it."""
        self.superlink.stop()
        end_processes(f"{MARKER}={self._marker}")
        shutil.rmtree(self._ray_directory, ignore_errors=True)

    def processes(self) -> list[int]:
        """Every process of this engine, whatever started it."""
        return find_processes(f"{MARKER}={self._marker}")

    def flwr(self, *arguments: str, timeout: float = 120.0) -> str:
        """The standard output of one `flwr` command."""
        done = subprocess.run(["flwr", *arguments], env=self.env, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise ProcessFailedError(f"flwr {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, app: Path, run_config: Config, *options: str) -> int:
        """Start a run and return its id without waiting for it."""
        config = ["--run-config", toml_pairs(run_config)] if run_config else []
        return int(self._json("run", str(app), self.connection, *config, *options)["run-id"])

    def status(self, run_id: int) -> str:
        """Flower's word for where the run stands: `pending`, `starting`, `running`, `finished:*`."""
        return str(self._json("ls", self.connection, "--run-id", str(run_id))["runs"][0]["status"])

    def log_text(self, run_id: int) -> str:
        """What the ServerApp has printed and logged so far: it is in no file, only `flwr log` has it."""
        return self.flwr("log", str(run_id), self.connection, "--show")

    def wait(self, run_id: int, *, timeout: float, expect: str = "finished:completed") -> Run:
        """Wait until the run is finished; anything but `expect` raises with the ServerApp's log."""
        start = time.monotonic()
        while not (status := self.status(run_id)).startswith("finished"):
            if time.monotonic() - start > timeout:
                raise ProcessFailedError(f"run {run_id} is {status} after {timeout} s\n{tail(self._save_log(run_id))}")
            self._wait_for_change(run_id, STATUS_SECONDS)
        run = Run(run_id=run_id, status=status, seconds=time.monotonic() - start, log=self._save_log(run_id))
        if status != expect:
            raise ProcessFailedError(f"run {run_id} is {status}, not {expect}\n{tail(run.log)}")
        return run

    def _wait_for_change(self, run_id: int, seconds: float) -> None:
        """Watch the SuperLink's log for the end of the run: each `flwr ls` costs 1.5 s of a core."""
        ended = re.compile(rf"Finished task \d+ of run {run_id}\b")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.superlink_log.exists() and ended.search(self.superlink_log.read_text(errors="replace")):
                return
            time.sleep(0.1)

    def _save_log(self, run_id: int) -> Path:
        path = self.directory / f"serverapp-{run_id}.log"
        path.write_text(self.log_text(run_id))
        return path

    def _json(self, *arguments: str) -> dict[str, Any]:
        text = self.flwr(*arguments, "--format", "json")
        answer = json.loads(text[text.index("{") :])  # notices may come before the answer
        if not answer.get("success", True):
            raise ProcessFailedError(f"flwr {' '.join(arguments)}\n{text}")
        return dict(answer)


class Deployment(Engine):
    """A SuperLink on a free port, and the SuperNodes that are started on it."""

    connection = "deploy"

    def __init__(
        self,
        directory: Path,
        *,
        tls: bool = False,
        env: Mapping[str, str] | None = None,
        warm: Sequence[str] | None = None,
    ) -> None:
        """`warm`: what SuperNodes import beforehand (`secureafl warm`); None for nodes as Flower starts them."""
        super().__init__(directory, env=env)
        self._prefix = [] if warm is None else ["secureafl", "warm", *(f"--import={name}" for name in warm), "--"]
        self.superlink_log = directory / "superlink.log"
        self.nodes: list[Node] = []
        self._keys: dict[int, Path] = {}
        self.tls = tls
        server, trust = ["--insecure"], "insecure = true"
        if tls:
            write_certificates(directory)
            server = ["--ssl-ca-certfile", str(self.ca), "--ssl-certfile", str(directory / "server.pem")]
            server += ["--ssl-keyfile", str(directory / "server.key"), "--enable-supernode-auth"]
            trust = f'root-certificates = "{self.ca}"'
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "deploy"\n[superlink.deploy]\naddress = "{HOST}:{self.port}"\n{trust}\n'
        )
        self._superlink_command = ["flower-superlink", "--host", HOST, "--port", str(self.port), *server]

    def __enter__(self) -> Self:
        self._start_superlink(self._superlink_command)
        return self

    def close(self) -> None:
        for node in self.nodes:
            node.stop()
        super().close()

    def start_node(self, index: int, node_config: Config, *, timeout: float = 120.0) -> Node:
        """Start SuperNode `index` and wait for it; with TLS, its key is made and registered the first time."""
        return self.start_nodes({index: node_config}, timeout=timeout)[0]

    def start_nodes(self, node_configs: Mapping[int, Config], *, timeout: float = 120.0) -> list[Node]:
        """Start several SuperNodes at once, then wait for them all."""
        deadline = time.monotonic() + timeout
        started = {index: self._launch(index, node_config) for index, node_config in node_configs.items()}
        for index, node in started.items():
            # The key of a killed node is refused until its heartbeat lapses; as an init system would, try again.
            while not node.wait_active(deadline):
                time.sleep(2.0)
                node = started[index] = self._launch(index, node_configs[index])
        return list(started.values())

    def run(self, app: Path, run_config: Config, *, timeout: float, expect: str = "finished:completed") -> Run:
        return self.wait(self.submit(app, run_config), timeout=timeout, expect=expect)

    def server_process(self) -> int | None:
        """The pid of the ServerApp of the run that is going on."""
        found = [pid for pid in self.processes() if "flwr-serverapp" in command_line(pid)]
        return found[0] if found else None

    def end_server(self) -> None:
        """SIGTERM to the ServerApp."""
        pid = self.server_process()
        if pid is None:
            raise ProcessFailedError(f"no ServerApp is running\n{tail(self.superlink_log)}")
        os.kill(pid, signal.SIGTERM)

    def _launch(self, index: int, node_config: Config) -> Node:
        command = [*self._prefix, "flower-supernode", "--superlink", f"{HOST}:{self.port}", "--port", str(free_port())]
        command += ["--node-config", toml_pairs(node_config)] if node_config else []
        if self.tls:
            command += ["--root-certificates", str(self.ca), "--auth-supernode-private-key", str(self._key(index))]
        else:
            command += ["--insecure"]
        node = Node(command, self.env, self.directory / f"node-{index}-{len(self.nodes)}.log")
        self.nodes.append(node)
        return node

    def _key(self, index: int) -> Path:
        if index not in self._keys:
            private = self.directory / f"node-{index}.key"
            public = write_node_key(private)
            self.flwr("supernode", "register", str(public), self.connection)
            self._keys[index] = private
        return self._keys[index]


class Simulation(Engine):
    """What `flwr run . sim` runs in: a local SuperLink, started here as the command would, but waited for as long as
    a busy machine takes. The command finds it on our port, and uses it."""

    connection = "sim"

    def __init__(self, directory: Path, *, cwd: Path | None = None) -> None:
        """`cwd` is where an app's relative paths begin, as they do where a user types `flwr run`."""
        super().__init__(directory)
        self.superlink_log = directory / "superlink.log"
        self._cwd = cwd
        (self.home / "config.toml").write_text(
            '[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = ":local-in-memory:"\n'
        )

    def __enter__(self) -> Self:
        server = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
        server += ["--host", HOST, "--port", str(self.port)]
        self._start_superlink(server, self._cwd)
        return self

    def run(
        self,
        app: Path,
        run_config: Config,
        *,
        num_supernodes: int,
        timeout: float,
        federation_config: Config | None = None,
        expect: str = "finished:completed",
    ) -> Run:
        federation = {"num-supernodes": num_supernodes, "client-resources-num-cpus": 1, **(federation_config or {})}
        run_id = self.submit(app, run_config, "--federation-config", toml_pairs(federation))
        return self.wait(run_id, timeout=timeout, expect=expect)


def toml_pairs(config: Config) -> str:
    """`key=value` pairs as Flower's command line wants them: JSON scalars are TOML scalars."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
