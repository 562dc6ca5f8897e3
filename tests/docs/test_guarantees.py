"""Each promise names a test that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| promise")]


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_has_its_test(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
    assert named
    for path, test in named:
        text = (ROOT / path).read_text()
        assert not test or f"def {test}(" in text
