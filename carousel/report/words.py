"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["bytes_text", "count_text", "percent_text", "seconds_text"]


def bytes_text(count: float) -> str:
    """Bytes in binary units, always with three digits; below 1000 bytes the exact count.

    Example:
        >>> bytes_text(512), bytes_text(67108864), bytes_text(1.5 * 1024**3)
        ('512 B', '64.0 MiB', '1.50 GiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = next((p for p in range(len(units)) if abs(count) < 1000 * 1024**p), len(units) - 1)
    value = count / 1024**power
    if power == 0:
        return f"{value:.0f} B"
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f} {units[power]}"


def seconds_text(seconds: float) -> str:
    """A duration: ``0.52 s``, ``48 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent_text(fraction: float | None) -> str:
    """An accuracy or a share in per cent, a dash for None."""
    return "-" if fraction is None else f"{fraction * 100:.1f} %"


def count_text(count: int) -> str:
    """A whole number with separators: ``12,345``."""
    return f"{count:,}"
