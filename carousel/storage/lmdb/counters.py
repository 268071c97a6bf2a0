"""What an LMDB store counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """What happened since the store was opened."""

    commits: int = 0
    puts: int = 0
    evicted: int = 0
    rejected: int = 0
    raw_bytes: int = 0
    cost_bytes: int = 0
