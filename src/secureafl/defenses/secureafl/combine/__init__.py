"""One step of all votes: a running mean that reads the sender's row, or what reads everyone's."""

from secureafl.defenses.secureafl.combine.coordinate_wise import Mean, Median, TrimmedMean
from secureafl.defenses.secureafl.combine.running_mean import RunningMean

__all__ = ["Mean", "Median", "RunningMean", "TrimmedMean"]
