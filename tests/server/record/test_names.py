from pathlib import Path

import pytest

from secureafl.errors import SettingsError
from secureafl.server.record.address import RunUrl, store_of
from secureafl.server.record.names import NAMES, ClientNames, names_of, read_names

A, B, C = "7345310127518283649", "7345310199999999999", "1200000000000000007"
NAMED = ClientNames({A: "hospital-a", B: "hospital-b"})


def test_a_client_is_shown_by_its_name_or_its_id() -> None:
    assert NAMED.shown(A) == "hospital-a"
    assert NAMED.shown_with_id(A) == f"hospital-a ({A})"
    assert NAMED.shown(C) == NAMED.shown_with_id(C) == C
    assert ClientNames({A: "\x1b[2J"}).shown(A) == r"\x1b[2J"


@pytest.mark.parametrize(
    ("text", "client"),
    [(A, A), ("hospital-a", A), ("73453101275", A), ("hospital-b", B), ("12", C), ("1200000000000000007", C)],
)
def test_an_id_a_name_or_a_beginning_that_is_unique_finds_the_client(text: str, client: str) -> None:
    assert NAMED.find(text, {A, B, C}, "runs/x") == client


def test_a_name_in_full_wins_over_one_that_it_begins() -> None:
    assert ClientNames().find("client-1", {"client-1", "client-10"}, "runs/x") == "client-1"


def test_what_fits_several_or_nobody_is_said() -> None:
    with pytest.raises(SettingsError, match=rf"hosp may be any of hospital-a \({A}\), hospital-b \({B}\): write more"):
        NAMED.find("hosp", {A, B, C}, "runs/x")
    with pytest.raises(SettingsError, match="runs/x knows no client nobody; it has 1200000000000000007, hospital-a"):
        NAMED.find("nobody", {A, B, C}, "runs/x")


def test_a_file_of_names(tmp_path: Path) -> None:
    path = tmp_path / "names.toml"
    path.write_text(f'"{A}" = "hospital-a"\n{C} = "clinic"\n')
    names = read_names(path)
    assert (names.shown(A), names.shown(C), names.shown(B)) == ("hospital-a", "clinic", B)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'"{A}" = 3', "is no text: write"),
        (f'"{A}" = ""', "1 to 200 are allowed"),
        (f'"{A}" = "x"\n"{B}" = "x"', "are both called x"),
        ("no toml", "cannot read clients' names"),
    ],
)
def test_a_file_that_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "names.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_names(path)


def test_names_that_are_kept_with_the_run(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    assert not names_of(store)
    (tmp_path / NAMES).write_text(f'"{A}" = "hospital-a"\n')
    assert names_of(store).shown(A) == "hospital-a"
    (tmp_path / "mine.toml").write_text(f'"{A}" = "clinic"\n')
    assert names_of(store, tmp_path / "mine.toml").shown(A) == "clinic"


def test_names_that_are_kept_in_a_database(run_url: RunUrl) -> None:
    store = store_of(run_url)
    hold = store.hold()
    store.files.write(NAMES, [f'"{A}" = "hospital-a"\n'.encode()])
    hold.release()
    assert names_of(store_of(run_url)).shown(A) == "hospital-a"
