"""Tiers that keep samples as bytes. Knows nothing of learning: numpy in, numpy out.

Example:
    >>> from carousel.storage import open_tier
    >>> with open_tier(None, kind="memory", budget=100) as tier:
    ...     tier.stats().records
    0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from carousel.errors import BadInputError
from carousel.lazy import lazy_names

if TYPE_CHECKING:
    from pathlib import Path

    from carousel.storage.budget import Budget, parse_budget, parse_size
    from carousel.storage.lmdb.tier import LMDBTier
    from carousel.storage.plain.file_tier import FileTier
    from carousel.storage.plain.memory_tier import MemoryTier
    from carousel.storage.record import ENCODED, FieldSpec, Layout, Record, RecordBatch
    from carousel.storage.tier import ReadStatus, StorageTier, TierStats, VerifyReport

__all__ = [
    "ENCODED",
    "Budget",
    "FieldSpec",
    "FileTier",
    "LMDBTier",
    "Layout",
    "MemoryTier",
    "ReadStatus",
    "Record",
    "RecordBatch",
    "StorageTier",
    "TierStats",
    "VerifyReport",
    "open_tier",
    "parse_budget",
    "parse_size",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "budget": ("Budget", "parse_budget", "parse_size"),
        "plain.file_tier": ("FileTier",),
        "lmdb.tier": ("LMDBTier",),
        "plain.memory_tier": ("MemoryTier",),
        "record": ("ENCODED", "FieldSpec", "Layout", "Record", "RecordBatch"),
        "tier": ("ReadStatus", "StorageTier", "TierStats", "VerifyReport"),
    },
    also=("open_tier",),
)
_KINDS = {"lmdb": "LMDBTier", "files": "FileTier", "memory": "MemoryTier"}


def open_tier(path: str | Path | None, kind: str = "lmdb", **options: Any) -> StorageTier:
    """Open, or make, a storage tier.

    Args:
        path: its folder; None for the tier in RAM.
        kind: ``"lmdb"`` (default), ``"files"`` (one file a sample) or ``"memory"``.
        **options: of the tier, such as ``budget`` and ``eviction``.

    Raises:
        BadInputError: the kind is unknown, or the path is missing.
    """
    if kind not in _KINDS:
        raise BadInputError(f"kind is {kind!r}", fix=f"choose one of {', '.join(_KINDS)}")
    make = __getattr__(_KINDS[kind])
    if kind == "memory":
        return cast("StorageTier", make(**options))
    if path is None:
        raise BadInputError("path is None", fix=f"give the folder of the {kind} storage")
    return cast("StorageTier", make(path, **options))
