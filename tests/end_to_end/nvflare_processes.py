"""Real NVFlare processes for end-to-end tests: provisioned with certificates, on loopback and a free port.

`Deployment` is a server and its sites, started from their startup kits without the kits' restarting scripts. NVFlare
starts one more process per job on the server and on every site. Each process carries a marker of this harness and one
of its site in its environment, so that all of them are found in /proc and ended by pid (Linux).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nvflare.collab import CollabRecipe
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.lighter.constants import ProvisionMode
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from tests.end_to_end.child_processes import (
    Process,
    ProcessFailedError,
    command_line,
    end_processes,
    find_processes,
    free_port,
    tail,
)

MARKER, SITE_MARKER = "NVFLARE_PROCESSES", "NVFLARE_PROCESSES_SITE"
SERVER, ADMIN, ORG = "localhost", "admin@example.org", "example"
STORES = "/tmp/nvflare/"  # where NVFlare keeps jobs and snapshots unless told otherwise
LOGIN_SECONDS = 30.0
COMMAND_SECONDS = 60.0  # an administrator's command has 5 otherwise, which are too few on a busy machine
COMPLETED, ABORTED, FAILED = (f"FINISHED:{word}" for word in ("COMPLETED", "ABORTED", "EXECUTION_EXCEPTION"))
BUILDERS = "nvflare.lighter.impl"


class Deployment:
    """A server with its sites, provisioned for production or, with `poc`, as NVFlare's proof of concept is."""

    def __init__(self, directory: Path, sites: Sequence[str], *, poc: bool = False) -> None:
        self.directory = directory
        self.port = free_port()
        directory.mkdir(parents=True)
        self.kits = provision(directory / "kits", self.port, sites, poc=poc)
        self._marker = uuid.uuid4().hex
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", MARKER: self._marker}
        self._processes: dict[str, Process] = {}
        self._num_started = 0

    def __enter__(self) -> Self:
        try:
            self.start_server()
        except ProcessFailedError:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process that carries our marker."""
        end_processes(f"{MARKER}={self._marker}")
        for process in self._processes.values():
            process.kill()

    def start_server(self, timeout: float = 60.0) -> None:
        """Start the server and wait until administrators can log in."""
        process = self._start(SERVER, "server.server_train", "fed_server.json", "")
        process.wait_ready(self._answers, timeout)

    def start_sites(self, *sites: str, timeout: float = 60.0) -> None:
        """Start several sites at once, and wait until the server has registered them all."""
        started = [self._start(site, "client.client_train", "fed_client.json", f"uid={site}") for site in sites]
        for process in started:
            process.wait_ready(lambda log=process.log: "Successfully registered client" in read(log), timeout)  # type: ignore[misc]

    def kill(self, site: str) -> None:
        """SIGKILL to a site's processes, as when its machine loses power; the parent first, so that it tells nobody."""
        for pid in sorted(self.processes(site), key=lambda pid: "worker_process" in command_line(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._processes[site].kill()

    def processes(self, site: str) -> list[int]:
        """The processes of one site or of the server."""
        return find_processes(f"{SITE_MARKER}={self._marker}:{site}")

    def job_processes(self, site: str = SERVER) -> list[int]:
        """The processes that run jobs on a site or, by default, on the server."""
        return [pid for pid in self.processes(site) if "_process -m" in command_line(pid)]

    def wait_until_idle(self, timeout: float) -> None:
        """Wait until the server runs no job; NVFlare may still wait for sites before it calls the job finished."""
        deadline = time.monotonic() + timeout
        while self.job_processes():
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"the server runs a job after {timeout} s\n{self.log(SERVER)}")
            time.sleep(0.5)

    def submit(self, recipe: CollabRecipe) -> str:
        """Start a job and return its id without waiting for it."""
        folder = self.directory / f"job-{uuid.uuid4().hex}"
        recipe.export(job_dir=str(folder))
        [job] = [path.parent for path in folder.rglob("meta.json")]
        with self.session() as session:
            return str(session.submit_job(str(job)))

    def wait(self, job_id: str, *, timeout: float, expect: str = COMPLETED) -> None:
        """Wait until the job is finished; anything but `expect` raises with the server's log."""
        deadline = time.monotonic() + timeout
        with self.session() as session:
            while not (status := str(session.get_job_meta(job_id)["status"])).startswith("FINISHED"):
                if time.monotonic() > deadline:
                    raise ProcessFailedError(f"job {job_id} is {status} after {timeout} s\n{self.log(SERVER)}")
                time.sleep(0.5)
        if status != expect:
            raise ProcessFailedError(f"job {job_id} is {status}, not {expect}\n{self.log(SERVER)}")

    def abort(self, job_id: str, *, timeout: float) -> None:
        """End a job as an administrator does, and wait until it is over."""
        with self.session() as session:
            session.abort_job(job_id)
        self.wait(job_id, timeout=timeout, expect=ABORTED)

    def log(self, site: str) -> str:
        """The end of what a site or the server printed."""
        return tail(self._processes[site].log)

    def full_log(self, site: str) -> str:
        """All that a site or the server printed, its jobs included."""
        return read(self._processes[site].log)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """An administrator's connection."""
        session = new_secure_session(
            ADMIN, str(self.kits / ADMIN), timeout=LOGIN_SECONDS, command_timeout=COMMAND_SECONDS
        )
        try:
            yield session
        finally:
            session.close()

    def _start(self, site: str, module: str, config: str, setting: str) -> Process:
        kit = self.kits / site
        (kit / "transfer").mkdir(exist_ok=True)
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}", "-m", str(kit), "-s", config]
        command += ["--set", "secure_train=true", *setting.split(), f"org={ORG}", "config_folder=config"]
        env = {**self._env, SITE_MARKER: f"{self._marker}:{site}"}
        self._num_started += 1
        process = Process(command, env, self.directory / f"{site}-{self._num_started}.log")
        self._processes[site] = process
        return process

    def _answers(self) -> bool:
        try:
            with self.session():
                return True
        except Exception:  # NVFlare raises many kinds while the server is not there yet
            return False


def provision(directory: Path, port: int, sites: Sequence[str], *, poc: bool) -> Path:
    """Startup kits with NVFlare's own certificates; returns the folder that holds one per participant."""
    config: dict[str, Any] = {
        "api_version": 3,
        "name": "federation",
        "description": "end-to-end tests",
        "participants": [
            {"name": SERVER, "type": "server", "org": ORG, "fed_learn_port": port},
            *({"name": site, "type": "client", "org": ORG} for site in sites),
            {"name": ADMIN, "type": "admin", "org": ORG, "role": "project_admin"},
        ],
        "builders": [
            {"path": f"{BUILDERS}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": f"{BUILDERS}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{BUILDERS}.cert.CertBuilder"},
            {"path": f"{BUILDERS}.signature.SignatureBuilder"},
        ],
    }
    project = prepare_project(config)
    Provisioner(str(directory), prepare_builders(config)).provision(project, mode=ProvisionMode.POC if poc else None)
    kits = directory / "federation" / "prod_00"
    local = kits / SERVER / "local"
    defaults = (local / "resources.json.default").read_text()
    (local / "resources.json").write_text(defaults.replace(STORES, f"{directory}/stores/"))
    return kits


def simulate(recipe_script: Path, directory: Path, arguments: Sequence[str], *, timeout: float) -> str:
    """Run a job script that uses NVFlare's simulator; returns what it printed."""
    marker = uuid.uuid4().hex
    env = {**os.environ, "NVFLARE_SIMULATOR_WORKSPACE_ROOT": str(directory), MARKER: marker}
    log = directory / "simulator.log"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("wb") as sink:
            done = subprocess.run(
                [sys.executable, str(recipe_script), *arguments], env=env, stdout=sink, stderr=sink, timeout=timeout
            )
    finally:
        end_processes(f"{MARKER}={marker}")
    if done.returncode != 0:
        raise ProcessFailedError(f"{recipe_script}: exit {done.returncode}\n{tail(log)}")
    return log.read_text(errors="replace")


def read(log: Path) -> str:
    return log.read_text(errors="replace")
