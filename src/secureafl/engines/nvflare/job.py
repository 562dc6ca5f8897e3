"""A federation as a job for NVFlare: its simulator, a proof of concept on one machine, or a provisioned deployment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nvflare.collab import CollabRecipe

from secureafl.errors import SettingsError

SYNC_SECONDS = 300.0
MAX_SITES = 1000


def federation_recipe(
    name: str,
    server: object,
    client: object,
    *,
    files: Iterable[Path | str] = (),
    min_clients: int = 1,
    sync_seconds: float = SYNC_SECONDS,
) -> CollabRecipe:
    """A recipe to run with `.execute(SimEnv(num_clients=10))`, `PocEnv` or `ProdEnv`.

    server        an `AsyncServer`, or a Collab server of your own that calls `run_federation`
    client        an `AsyncClient`
    files         modules and packages with the named functions: sent to the server and to every site
    min_clients   the job starts once so many sites are connected; who comes later takes part in the next job
    sync_seconds  how long the sites may take to start
    """
    recipe = CollabRecipe(
        job_name=name,
        server=server,
        client=client,
        min_clients=min_clients,
        sync_task_timeout=sync_seconds,
        max_outbound_call_threads_for_server=MAX_SITES,
    )
    job = recipe.finalize()
    job.set_app_packages(["secureafl"])  # installed on every site, not sent
    for path in map(Path, files):
        if not path.exists():
            raise SettingsError(f"{path} does not exist, so it cannot be sent with the job {name!r}")
        folder = path.name if path.is_dir() else None
        job.add_file_to_server(str(path), dest_dir=folder, app_folder_type="custom")
        job.add_file_to_clients(str(path), dest_dir=folder, app_folder_type="custom")
    return recipe
