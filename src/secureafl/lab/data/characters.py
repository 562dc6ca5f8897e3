"""Text as small grey images, so that whatever is done with images can be done with text.

A character is one of z = 28 classes: a to z are 0 to 25 in either case, a space is 26, everything else is 27. A sample
is a window of 64 characters, row by row in an 8 x 8 image, and its label is the class of the character that follows.
Class c is the byte in the middle of its share of the range,

    byte = round(255 (c + 1/2) / z)        and back:        c = floor(z byte / 255)

so any value in [0, 1], such as one of a trigger, stands for a character, and each class for an equal share of them.
"""

from __future__ import annotations

import string

import numpy as np
import numpy.typing as npt

from secureafl.errors import DataError

NUM_CHARACTERS = len(string.ascii_lowercase) + 2
SPACE, OTHER = NUM_CHARACTERS - 2, NUM_CHARACTERS - 1

SIDE = 8
"""Rows of a window's image, and characters in a row."""


def classes_of(text: str) -> npt.NDArray[np.int64]:
    """(N,) the class of each character."""
    codes = np.frombuffer(text.lower().encode("ascii", "replace"), np.uint8).astype(np.int64)
    letters = codes - ord("a")
    return np.select([(letters >= 0) & (letters < SPACE), codes == ord(" ")], [letters, SPACE], OTHER)


def as_bytes(classes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The byte that stands for each class."""
    return np.asarray(np.rint((classes + 0.5) * (255 / NUM_CHARACTERS)), np.uint8)


def windows(classes: npt.NDArray[np.int64], count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """`count` windows, evenly spaced from the text's beginning to its end, or all if it has fewer.

    Returns (count, 8, 8) bytes, and (count,) classes of the characters that follow.
    """
    size = SIDE * SIDE
    available = len(classes) - size
    if available < 1:
        raise DataError(f"a text of {len(classes)} characters is too short: a window and what follows are {size + 1}")
    starts = np.linspace(0, available - 1, min(count, available)).astype(np.int64)
    rows = as_bytes(classes)[starts[:, None] + np.arange(size)]
    return rows.reshape(-1, SIDE, SIDE), classes[starts + size]
