from pathlib import Path

import pytest

from secureafl.errors import SettingsError
from secureafl.server.record.address import RunUrl, parse_place
from secureafl.server.record.run import StoreSettings


def test_a_folder_is_a_folder_and_a_url_is_a_url() -> None:
    assert parse_place("runs/today") == Path("runs/today")
    url = parse_place("postgresql://ops@db:5433/runs/today?sslmode=require")
    assert isinstance(url, RunUrl)
    assert url.name == "today"
    assert url.database == "postgresql://ops@db:5433/runs?sslmode=require"
    assert parse_place(url) is url


def test_a_password_is_used_and_never_shown() -> None:
    settings = StoreSettings(run_dir="postgresql://ops:hunter2@db/runs/today?sslpassword=hunter2")  # type: ignore[arg-type]
    assert isinstance(settings.run_dir, RunUrl)
    assert "hunter2" in settings.run_dir.database
    for shown in (str(settings.run_dir), repr(settings), settings.model_dump_json()):
        assert "hunter2" not in shown
    assert str(settings.run_dir) == "postgresql://ops@db/runs/today"


def test_a_socket_and_several_hosts_can_be_named() -> None:
    assert RunUrl.parse("postgresql:///runs/today?host=/var/run").database == "postgresql:///runs?host=/var/run"
    assert RunUrl.parse("postgres://a:1,b:2/runs/today").database == "postgres://a:1,b:2/runs"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "postgresql://ops:hunter2@db/runs",
            r"postgresql://ops@db/runs names no run: write postgresql://ops@db/DATABASE",
        ),
        ("postgresql://db/a/b/c", "names no run"),
        ("postgresql://db/runs/-x", "'-x' is no name for a run: write up to 50 letters"),
        (f"postgresql://db/runs/{'x' * 51}", "is no name for a run"),
        ("mysql://db/runs/today", "no run can be kept in mysql: name a folder, or postgresql://"),
    ],
)
def test_what_names_no_run_is_said(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_place(text)


def test_a_setting_that_is_no_text_is_named() -> None:
    with pytest.raises(SettingsError, match=r"run_dir = 7: .*a run is named by its folder or its URL"):
        StoreSettings(run_dir=7)  # type: ignore[arg-type]
