"""A region and the server above it, in one process: real threads and files, vectors worked out by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from secureafl import Layout, Machine, Vector
from secureafl.defenses import AsyncSGD
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.region_folder import RegionFolder
from secureafl.engines.uplink import Uplink
from secureafl.errors import FederationError, SettingsError
from secureafl.server import Federation
from secureafl.server.record.entries import Event
from secureafl.types import NamedArrays

PATIENCE = 60.0
START = {"w": np.zeros(2, np.float32)}


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


class Region:
    """A regional server without clients: the test sends in their place."""

    def __init__(self, directory: Path, **changes: object) -> None:
        self.settings = EngineSettings(
            defense="asyncsgd",
            region_dir=directory / "region",
            upstream="top",
            report_every=2,
            run_dir=directory / "run",
            **changes,  # type: ignore[arg-type]
        )
        layout = Layout.of(START)
        machine = Machine(AsyncSGD(2), layout.flatten(START), self.settings.machine())
        self.federation = Federation(machine, layout, self.settings)
        self.folder = RegionFolder(directory / "region")
        self.uplink = Uplink(self.folder, self.federation, layout, self.settings)
        self._thread = threading.Thread(target=self.federation.run)
        self._thread.start()

    def send(self, client: str, *values: float) -> None:
        assignment = self.federation.assign(client)
        assert assignment is not None
        self.federation.deliver(assignment, vector(*values)).result(PATIENCE)

    def close(self) -> None:
        self.federation.stop()
        self._thread.join(PATIENCE)
        self.uplink.close()
        self.federation.close()


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    made = Region(tmp_path)
    yield made
    made.close()


@pytest.fixture
def above() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def ask(above: ThreadPoolExecutor, region: Region, *values: float) -> Future[NamedArrays]:
    """Hand a model down, as the server above does, and wait until the region follows it."""
    num_before = region.federation.model.version
    asked = above.submit(region.folder.ask, {"w": vector(*values)}, PATIENCE)
    for _ in range(int(PATIENCE / 0.05)):
        if region.federation.model.version > num_before:
            return asked
        threading.Event().wait(0.05)
    raise AssertionError("the region did not follow")


def test_a_region_follows_the_model_from_above_and_reports_where_it_came(
    region: Region, above: ThreadPoolExecutor
) -> None:
    region.send("a", 1, 0)  # before anything came from above: this is kept
    first = ask(above, region, 10, 10)
    assert region.federation.model.params.tolist() == [9, 10]
    region.send("a", 1, 0)
    assert not first.done()
    region.send("b", 0, 2)
    assert first.result(PATIENCE)["w"].tolist() == [8, 8]
    region.send("b", 0, 1)  # between a report and the next model from above: kept for the next report
    second = ask(above, region, 20, 20)
    assert region.federation.model.params.tolist() == [20, 19]
    region.send("a", 1, 0)
    region.send("a", 1, 0)
    assert second.result(PATIENCE)["w"].tolist() == [18, 19]
    region.uplink.close()  # it forgets what was there before after it has reported
    assert sorted(path.name for path in region.folder.directory.iterdir()) == [
        "model-2.safetensors",
        "update-2.safetensors",
    ]


def test_who_asks_again_before_the_report_gets_all_that_was_learned(region: Region, above: ThreadPoolExecutor) -> None:
    region.folder._write(region.folder._model(1), {"w": vector(10, 10)})  # a client that was killed afterwards
    ask_until = region.federation.model.version
    while region.federation.model.version == ask_until:
        threading.Event().wait(0.05)
    region.send("a", 1, 0)
    second = ask(above, region, 20, 20)
    assert region.federation.model.params.tolist() == [19, 20]
    region.send("a", 1, 0)
    region.send("a", 1, 0)
    assert second.result(PATIENCE)["w"].tolist() == [17, 20]


def test_what_came_from_above_is_on_record_and_no_client_may_take_that_name(
    region: Region, above: ThreadPoolExecutor
) -> None:
    ask(above, region, 10, 10)
    region.send("a", 1, 0)
    region.send("a", 1, 0)
    assert region.federation.assign("top") is None
    assert region.federation.quarantined("top")
    rows = [row for row in region.federation.journal.entries(Event.ARRIVAL) if row.client == "top"]
    assert [(row.accepted, row.reason) for row in rows] == [(True, "from-above")]


def test_a_restarted_region_begins_at_the_next_model_from_above(tmp_path: Path, above: ThreadPoolExecutor) -> None:
    first = Region(tmp_path)
    asked = ask(above, first, 10, 10)
    first.send("a", 1, 0)
    first.close()  # before it reported: the client above still waits
    second = Region(tmp_path, resume=True)
    try:
        while second.federation.model.params.tolist() != [10, 10]:
            threading.Event().wait(0.05)
        second.send("a", 1, 0)
        second.send("a", 1, 0)
        assert asked.result(PATIENCE)["w"].tolist() == [8, 10]
    finally:
        second.close()


def test_a_region_without_a_server_says_so(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="is it running, with region-dir set to this folder"):
        RegionFolder(tmp_path / "region").ask(START, timeout=0.0)


def test_settings_of_a_region_go_together(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="go together"):
        EngineSettings(upstream="top")
    with pytest.raises(SettingsError, match="report_every = 3 does nothing"):
        EngineSettings(report_every=3)
    federation = Federation(
        Machine(AsyncSGD(2), vector(0, 0)), Layout.of(START), EngineSettings(run_dir=tmp_path / "run")
    )
    with pytest.raises(SettingsError, match="no server is above this one"):
        federation.follow(vector(1, 1))
    federation.close()
