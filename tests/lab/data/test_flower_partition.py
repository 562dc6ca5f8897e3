import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import Partitioner

from secureafl.errors import SettingsError
from secureafl.lab.data import fang
from secureafl.lab.data.flower_partition import FangPartitioner
from secureafl.lab.streams import stream

LABELS = stream(0, "labels").integers(0, 4, 500)


def partitioner(num_partitions: int = 6, partition_by: str = "label") -> FangPartitioner:
    made = FangPartitioner(num_partitions, partition_by, 0.7, seed=3)
    made.dataset = datasets.Dataset.from_dict(
        {"row": np.arange(500), "label": LABELS},
        datasets.Features(row=datasets.Value("int64"), label=datasets.ClassLabel(num_classes=4)),
    )
    return made


def test_deals_as_the_laboratory_does() -> None:
    made = partitioner()
    assert isinstance(made, Partitioner)
    assert made.num_partitions == 6
    for client, rows in enumerate(fang(LABELS, 6, 4, 0.7, stream(3, "partition"))):
        assert made.load_partition(client)["row"][:] == rows.tolist()


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingsError, match="partition_id = 6"):
        partitioner().load_partition(6)
    with pytest.raises(SettingsError, match="columns are row, label"):
        partitioner(partition_by="class").load_partition(0)
    with pytest.raises(SettingsError, match="num_partitions = 0"):
        partitioner(0)
