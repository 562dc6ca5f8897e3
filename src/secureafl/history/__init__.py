"""What the server remembers of each client: its last update, the model that was made for, and pairs of changes."""

from secureafl.history.last_updates import LastUpdates, Row, sketch_distance
from secureafl.history.pages import BASE, DELTA, PAIRS, Pages, Precision, expected_bytes
from secureafl.history.rows import Corrections, Float, History, Remembered

__all__ = [
    "BASE",
    "DELTA",
    "PAIRS",
    "Corrections",
    "Float",
    "History",
    "LastUpdates",
    "Pages",
    "Precision",
    "Remembered",
    "Row",
    "expected_bytes",
    "sketch_distance",
]
