"""Updates that came compressed: on record as they came, and the same to everyone who reads them."""

import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.server.recorded_runs import NAMES, PROBLEM, compressed, distance, record

from secureafl import Machine, MachineSettings
from secureafl.errors import StoreError
from secureafl.server.record import journal as journal_module
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Run, StoreSettings, recorded_delta
from secureafl.server.record.sqlite import read_journal
from secureafl.server.review.copying import copy
from secureafl.server.review.eject import eject
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare
from secureafl.server.review.verify import verify
from secureafl.wire import Feedback, Wire, decompress, is_compressed

WIRES: tuple[Wire, ...] = ("bfloat16", "int8")


def machine() -> Machine:
    return Machine(PROBLEM.defense("secureafl"), np.zeros(12, np.float32), MachineSettings(server_lr=0.05))


@pytest.mark.parametrize("wire", WIRES)
def test_the_journal_holds_the_bytes_as_they_came(tmp_path: Path, wire: Wire) -> None:
    run = Run(machine(), StoreSettings(run_dir=tmp_path), facts={"wire": wire})
    feedback, sent = Feedback(wire), []
    for number in range(5):
        update = compressed(np.random.default_rng(number).normal(size=12).astype(np.float32), feedback)
        sent.append(update)
        run.receive(run.issue("client-0").number, update)
    run.close()
    journal = read_journal(tmp_path / "run.db")
    rows = list(journal.entries(Event.ARRIVAL, payloads=True))
    assert [row.payload for row in rows] == [update.compressed for update in sent]
    for row, update in zip(rows, sent, strict=True):
        np.testing.assert_array_equal(recorded_delta(row, 12, "here"), update.delta)
    journal.close()


@pytest.mark.parametrize("wire", WIRES)
def test_a_run_with_compressed_and_plain_updates_is_resumed_replayed_copied_and_repaired(
    tmp_path: Path, wire: Wire
) -> None:
    run = record(tmp_path / "run", 130, wire=wire)  # the last snapshot is of 100
    kinds = Counter(is_compressed(row.payload or b"") for row in run.journal.entries(Event.ARRIVAL, payloads=True))
    assert min(kinds[True], kinds[False]) > 30
    found = compare(run, run.machine())
    assert found.num_arrivals == 130
    assert set(found.distances) == {0.0}
    assert copy(tmp_path / "run", tmp_path / "copy").num_updates == verify(tmp_path / "run").num_updates == 130
    again = run.machine()
    Run.resume(again, StoreSettings(run_dir=tmp_path / "copy"), facts={"wire": wire}).close()
    repair = eject(run, NAMES[:2], tmp_path / "repaired")
    assert repair.removed > 0
    with RecordedRun.open(tmp_path / "repaired") as repaired:
        left = repaired.machine()
        compare(repaired, left)
        assert distance(left.model.params) < distance(run.first)
    run.journal.close()


def test_a_bit_that_flips_in_a_compressed_update_is_found(tmp_path: Path) -> None:
    record(tmp_path, 20, wire="int8").journal.close()
    with sqlite3.connect(tmp_path / "run.db") as database:
        number, update = next(
            (number, update)
            for number, update in database.execute("SELECT number, update_bytes FROM updates")
            if is_compressed(update)
        )
        damaged = bytearray(update)
        damaged[21] ^= 1
        database.execute("UPDATE updates SET update_bytes = ? WHERE number = ?", [bytes(damaged), number])
    assert decompress(bytes(damaged), PROBLEM.dim) is not None, "it can still be read"
    with pytest.raises(StoreError, match=f"row {number}"):
        verify(tmp_path)


@pytest.mark.parametrize(("begun", "gone_on"), [("float32", "int8"), ("int8", "float32"), (None, "int8")])
def test_a_run_keeps_its_wire(tmp_path: Path, begun: str | None, gone_on: str) -> None:
    Run(machine(), StoreSettings(run_dir=tmp_path), facts={"wire": begun} if begun else {}).close()
    stated = begun or "float32"
    with pytest.raises(StoreError, match=f"was started with wire = '{stated}', not '{gone_on}'"):
        Run.resume(machine(), StoreSettings(run_dir=tmp_path), facts={"wire": gone_on})
    Run.resume(machine(), StoreSettings(run_dir=tmp_path), facts={"wire": stated}).close()


def test_a_version_that_knows_no_compressed_updates_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "plain", 3).journal.close()
    record(tmp_path / "small", 3, wire="bfloat16").journal.close()
    monkeypatch.setattr(journal_module, "COMPRESSED_FORMAT", journal_module.FORMAT)  # as 0.2 was
    read_journal(tmp_path / "plain" / "run.db").close()
    with pytest.raises(StoreError, match="has format 3; this version reads up to 2: install a newer one"):
        read_journal(tmp_path / "small" / "run.db")
