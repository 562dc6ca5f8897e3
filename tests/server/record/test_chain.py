import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl.server.record.chain import row_hash

ROW: tuple[Any, ...] = (7, 1.5, 3, "a", "arrival", "accepted", 1, '{"norm": 2.0}', 4, 2, b"\1" * 32, b"\2" * 32)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
PERHAPS = st.none() | NUMBERS
BYTES = st.none() | st.binary(max_size=40)
TEXT = st.text()  # also quotation marks, control characters, and what is not ASCII


@given(
    st.tuples(
        NUMBERS,
        st.floats(allow_nan=False, allow_infinity=False),
        NUMBERS,
        TEXT,
        TEXT,
        TEXT,
        PERHAPS,
        TEXT,
        PERHAPS,
        PERHAPS,
        BYTES,
        BYTES,
    )
)
def test_a_row_is_hashed_as_the_json_list_of_its_columns(row: tuple[Any, ...]) -> None:
    plain = [column.hex() if isinstance(column, bytes) else column for column in row]
    text = json.dumps(plain, separators=(",", ":"))
    assert row_hash(b"before", row) == hashlib.sha256(b"before" + text.encode()).digest()


@pytest.mark.parametrize("place", range(len(ROW)))
def test_a_column_of_another_type_is_no_row(place: int) -> None:
    for other in (7, 7.0, "7", b"7"):
        if type(other) is not type(ROW[place]):
            with pytest.raises(TypeError):
                row_hash(b"", (*ROW[:place], other, *ROW[place + 1 :]))
