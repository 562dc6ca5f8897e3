"""Data sets, how they are dealt to clients, and the backdoor trigger.

For `flwr_datasets` there is `FangPartitioner` in `secureafl.lab.data.flower_partition`.
"""

from secureafl.lab.data.catalogue import DATASETS, DatasetRecipe
from secureafl.lab.data.loading import ENVIRONMENT_VARIABLE, Dataset, LabelKind, load
from secureafl.lab.data.partition import dirichlet, fang, iid, minority, time_blocks
from secureafl.lab.data.trigger import Trigger

__all__ = [
    "DATASETS",
    "ENVIRONMENT_VARIABLE",
    "Dataset",
    "DatasetRecipe",
    "LabelKind",
    "Trigger",
    "dirichlet",
    "fang",
    "iid",
    "load",
    "minority",
    "time_blocks",
]
