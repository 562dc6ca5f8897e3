"""One step of all votes: the median, or something else that reads everyone's."""

from secureafl.defenses.secureafl.combine.coordinate_wise import Mean, Median, TrimmedMean

__all__ = ["Mean", "Median", "TrimmedMean"]
