import pytest

from secureafl.text import MAX_NAME, MAX_REASON, csv_cell, in_bytes, name_fault, one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jhospital\r\n\x9b", r"\x1b[2Jhospital\r\n\x9b"),
        ("a\u202eb", r"a\u202eb"),  # would turn the rest of the line round
        ("\ud800", r"\ud800"),
        ("Charité 7 λ [/x] C:\\new", "Charité 7 λ [/x] C:\\new"),
        ("", ""),
    ],
)
def test_what_does_not_show_is_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("  Traceback:\n  File x\r\n\tValueError: \x1b[2J ", r"Traceback: File x ValueError: \x1b[2J"),
        ("x" * MAX_REASON, "x" * MAX_REASON),
        ("x" * (MAX_REASON + 1), "x" * (MAX_REASON - 1) + "…"),
        ("a " * 10_000, ("a " * 100)[:-1] + "…"),
        ("\n" * 10_000 + "late", "late"),
        ("\x1b" * 10_000, (r"\x1b" * 50)[:-1] + "…"),
        (" \n ", ""),
    ],
)
def test_a_reason_is_one_line_and_not_long(text: str, line: str) -> None:
    assert one_line(text) == line
    assert one_line(line) == line
    assert len(line) <= MAX_REASON


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("hospital 7, Charité", None),
        ("x" * MAX_NAME, None),
        ("x" * (MAX_NAME + 1), "a client's name has 201 characters: 1 to 200 are allowed"),
        ("", "a client's name has 0 characters: 1 to 200 are allowed"),
        ("a\0", r"a client's name is no text: a\x00"),
        ("a\ud800", r"a client's name is no text: a\ud800"),
    ],
)
def test_a_name_is_short_text(name: str, fault: str | None) -> None:
    assert name_fault(name) == fault


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", " =1+1"])
def test_a_name_is_no_formula(name: str) -> None:
    assert csv_cell(name) == f"'{name}"


@pytest.mark.parametrize("value", [-1.5, 3, None, True, "client-0", "a=b"])
def test_other_cells_stay_as_they_are(value: object) -> None:
    assert csv_cell(value) == value


def test_a_cell_holds_no_control_characters() -> None:
    assert csv_cell("\t=1\x1b") == r"\t=1\x1b"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (4096, "4.1 kB"), (560_000, "560 kB"), (2.5e9, "2.5 GB"), (3e15, "3000 TB")],
)
def test_sizes_in_words(count: float, text: str) -> None:
    assert in_bytes(count) == text
