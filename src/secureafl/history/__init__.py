"""What the server remembers of each client: its last update, the model it was made for, pairs of changes; and where."""

from secureafl.history.last_updates import KEPT_AS, LastUpdates, Row, RowType, sketch_distance
from secureafl.history.pages import BASE, DELTA, PAIRS, Pages, Precision, expected_bytes
from secureafl.history.row_by_row import RowByRow
from secureafl.history.row_settings import RowSettings
from secureafl.history.rows import Corrections, Float, History, Remembered
from secureafl.history.stores import MappedRows, MemoryRows, RowStore

__all__ = [
    "BASE",
    "DELTA",
    "KEPT_AS",
    "PAIRS",
    "Corrections",
    "Float",
    "History",
    "LastUpdates",
    "MappedRows",
    "MemoryRows",
    "Pages",
    "Precision",
    "Remembered",
    "Row",
    "RowByRow",
    "RowSettings",
    "RowStore",
    "RowType",
    "expected_bytes",
    "sketch_distance",
]
