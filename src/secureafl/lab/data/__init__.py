"""Data sets, how they are dealt to clients, and the backdoor trigger.

For `flwr_datasets` there is `FangPartitioner` in `secureafl.lab.data.flower`.
"""

from secureafl.lab.data.loading import ENVIRONMENT_VARIABLE, Dataset, LabelKind, load
from secureafl.lab.data.partition import dirichlet, fang, iid, time_blocks
from secureafl.lab.data.recipes import DATASETS, Recipe
from secureafl.lab.data.trigger import Trigger

__all__ = [
    "DATASETS",
    "ENVIRONMENT_VARIABLE",
    "Dataset",
    "LabelKind",
    "Recipe",
    "Trigger",
    "dirichlet",
    "fang",
    "iid",
    "load",
    "time_blocks",
]
