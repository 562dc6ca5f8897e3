"""Numbers as people read them."""

from __future__ import annotations

MISSING = "–"  # noqa: RUF001 (an en dash is meant)


def number(value: float | None, digits: int = 3) -> str:
    """A figure with so many significant digits; a dash if there is none."""
    if value is None:
        return MISSING
    if abs(value) >= 10_000 or 0 < abs(value) < 0.001:
        return f"{value:.{digits - 1}e}"
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def duration(seconds: float) -> str:
    """Time in the two largest units."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {whole % 60} s"
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
