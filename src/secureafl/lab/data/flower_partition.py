"""The paper's partition for users of `flwr_datasets`. Kept apart, because importing that library takes seconds."""

from __future__ import annotations

import datasets
import numpy as np
from flwr_datasets.partitioner import Partitioner

from secureafl.errors import SettingsError
from secureafl.lab.arrays import Indices
from secureafl.lab.data import partition
from secureafl.lab.streams import stream


class FangPartitioner(Partitioner):  # type: ignore[misc]  # the library ships no types
    """Non-IID by groups of clients (Fang et al., 2020); see `secureafl.lab.data.partition.fang`.

    Give it to `flwr_datasets.FederatedDataset` as any other partitioner. With equal arguments it deals as the
    laboratory does.

    num_partitions    number of clients
    partition_by      column of class numbers, "label" say
    home_probability  x: chance that a sample goes to the group its class is at home in
    seed              of the stream that deals
    """

    def __init__(self, num_partitions: int, partition_by: str, home_probability: float = 0.5, *, seed: int = 0) -> None:
        super().__init__()
        if num_partitions < 1:
            raise SettingsError(f"num_partitions = {num_partitions}: at least 1 is needed")
        self._num_partitions = num_partitions
        self._partition_by = partition_by
        self._home_probability = home_probability
        self._seed = seed
        self._parts: list[Indices] | None = None

    @property
    def num_partitions(self) -> int:
        return self._num_partitions

    def load_partition(self, partition_id: int) -> datasets.Dataset:
        """The samples of one client, in their original order."""
        if not 0 <= partition_id < self._num_partitions:
            raise SettingsError(f"partition_id = {partition_id}: there are partitions 0 to {self._num_partitions - 1}")
        if self._parts is None:
            self._parts = self._deal()
        return self.dataset.select(self._parts[partition_id])

    def _deal(self) -> list[Indices]:
        column = self._partition_by
        if column not in self.dataset.column_names:
            raise SettingsError(f"partition_by = {column!r}: the columns are {', '.join(self.dataset.column_names)}")
        labels = np.asarray(self.dataset[column], np.int64)
        feature = self.dataset.features[column]
        num_classes = feature.num_classes if isinstance(feature, datasets.ClassLabel) else int(labels.max()) + 1
        rng = stream(self._seed, "partition")
        return partition.fang(labels, self._num_partitions, num_classes, self._home_probability, rng)
