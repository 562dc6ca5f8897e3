import pytest

from secureafl.view.words import duration, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),  # noqa: RUF001 (an en dash is meant)
        (0.0, "0"),
        (2.0, "2"),
        (1.23456, "1.23"),
        (1234.5, "1,230"),
        (12345.0, "1.23e+04"),
        (0.00012, "1.20e-04"),
        (-3.14159, "-3.14"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.9, "59 s"),
        (61.0, "1 min 1 s"),
        (3700.0, "1 h 1 min"),
        (90000.0, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
