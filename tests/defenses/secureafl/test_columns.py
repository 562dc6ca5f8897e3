import numpy as np

from secureafl.defenses.secureafl.averages import Averages
from secureafl.defenses.secureafl.columns import Column
from secureafl.types import ClientId


def test_a_column_grows_and_knows_who_has_no_number() -> None:
    column = Column(np.int64, -1)
    assert column[ClientId(10**6)] == -1
    column[ClientId(3)] = 7
    column[ClientId(1000)] = 0
    assert column.clients().tolist() == [3, 1000]
    assert column.pairs().tolist() == [[3, 7], [1000, 0]]
    del column[ClientId(3)], column[ClientId(10**6)]
    assert (column[ClientId(3)], column[ClientId(1000)]) == (-1, 0)


def test_a_loaded_column_holds_what_was_saved_and_nothing_else() -> None:
    column, other = Column(np.int64, -1), Column(np.int64, -1)
    column[ClientId(70)], other[ClientId(5)] = 2, 9
    other.load_pairs(column.pairs())
    assert (other[ClientId(70)], other[ClientId(5)]) == (2, -1)
    other.load_pairs(Column(np.int64, -1).pairs())
    assert other.clients().tolist() == []


def test_the_first_values_of_an_average_count_alike_and_the_later_ones_fade() -> None:
    averages = Averages(decay=0.5)
    assert [averages.hear(ClientId(9), value) for value in (1.0, 3.0, 6.0)] == [1.0, 2.0, 4.0]
    assert (averages.count(ClientId(9)), len(averages)) == (3, 1)
    averages.forget(ClientId(9))
    averages.forget(ClientId(9))
    assert (averages.of(ClientId(9)), len(averages)) == (0.0, 0)
