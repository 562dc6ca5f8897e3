import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.recorded_runs import LIARS, record

from secureafl.errors import StoreError
from secureafl.server.record.entries import Entry, Event
from secureafl.server.review.audit import ClientRecord, arrival, client_record, client_records, explain
from secureafl.server.review.opened import RecordedRun
from secureafl.types import Reason


def test_the_least_accepted_come_first_and_counts_add_up(tmp_path: Path) -> None:
    run = record(tmp_path, 200)
    records = client_records(run)
    assert sum(found.arrivals for found in records) == 200
    assert [found.share_accepted for found in records] == sorted(found.share_accepted for found in records)
    assert {records[0].client, records[1].client} == {f"client-{k}" for k in LIARS}
    for found in records:
        assert found.arrivals == found.accepted + sum(found.rejected.values())
    run.journal.close()


def test_one_client_is_read_alone_and_every_row_of_it_checked(tmp_path: Path) -> None:
    run = record(tmp_path, 200)
    wanted = {found.client: found.summary() | {"influence": None} for found in client_records(run)}
    run.journal.close()
    with closing(sqlite3.connect(tmp_path / "run.db")) as database, database:  # somebody else's row
        database.execute("UPDATE log SET reason = 'accepted' WHERE client = 'client-1' AND accepted = 0")
        database.execute("UPDATE log SET seconds = 99 WHERE client = 'client-1'")
    with RecordedRun.open(tmp_path, whole=False) as run:
        found = client_record(run, "client-0")
        assert found is not None
        assert found[0].summary() == wanted["client-0"]
        assert {entry.client for entry in found[1]} == {"client-0"}
        assert client_record(run, "client-99") is None
        with pytest.raises(StoreError, match="is damaged or was changed"):
            client_record(run, "client-1")


def test_one_verdict_is_explained_in_plain_words(tmp_path: Path) -> None:
    run = record(tmp_path, 60)
    rejected = next(e for e in run.journal.entries(Event.ARRIVAL) if e.reason == Reason.CHANGED_TOO_ABRUPTLY)
    found = arrival(run, rejected.version)
    assert found is not None
    text = " ".join(explain(found))
    assert rejected.client in text
    assert "It was rejected: since its last accepted update the client changed" in text
    assert f"{rejected.evidence['lipschitz_factor']:.4g}" in text
    assert arrival(run, 10_000) is None
    run.journal.close()


def test_what_was_shortened_is_said() -> None:
    evidence = {"norm": 10.0, "shortened_to": 0.5, "change_shortened_to": 0.25}
    text = " ".join(explain(Entry(0.0, 1, "a", Event.ARRIVAL, Reason.ACCEPTED, True, evidence)))
    assert "it counted as 0.5 of its length" in text
    assert "0.25 of that change counted" in text


def test_the_newest_word_of_a_client_about_its_privacy_counts_and_is_no_trouble() -> None:
    record = ClientRecord("a")
    for epsilon in (1.0, 2.0):
        record.add(Entry(0.0, 0, "a", Event.REPORTED, evidence={"epsilon": epsilon, "delta": 1e-5}))
    assert (record.summary()["epsilon"], record.summary()["delta"]) == (2.0, 1e-5)
    assert not record.happened()


def test_every_reason_has_words() -> None:
    for reason in Reason:
        if reason is not Reason.UNSOLICITED:
            text = " ".join(explain(Entry(0.0, 1, "a", Event.ARRIVAL, reason, False, {})))
            assert "The defense's word for it" not in text, reason
