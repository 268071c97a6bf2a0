"""What a record costs in pages of LMDB, and what a budget in bytes leaves for records."""

from __future__ import annotations

import numpy as np

from carousel.errors import BadInputError
from carousel.storage.columns import Ids

__all__ = [
    "LIVE_SHARE",
    "MIN_BUDGET",
    "check_budget_bytes",
    "data_bytes",
    "file_bytes",
    "group_bytes",
    "index_bytes",
    "record_costs",
]

LIVE_SHARE = 0.85
"""Share of a byte budget that live pages may take; the rest is room for copy-on-write."""

MIN_BUDGET = 512 << 10
"""Smallest byte budget: below it the trees alone leave no room for records."""

_SMALL_FILES = 48 << 10  # lock file of LMDB, marker, lock of the owner
_PAGE_HEADER = 16
_NODE = 18  # header of a node, its key of 8 bytes, its slot
_TREE = 64  # a leaf entry that points to pages of its own, with slack for half-full leaves


def record_costs(lengths: Ids, page_bytes: int) -> Ids:
    """Bytes of the file that records of these lengths take, (n,) int64.

    A record of up to about half a page lies within a leaf, a larger one on whole pages.
    """
    inline = (page_bytes - _PAGE_HEADER) // 2 - 2 - _NODE
    pages = -(-(lengths + _PAGE_HEADER) // page_bytes)
    return np.where(lengths <= inline, (lengths + _NODE) * 3 // 2, pages * page_bytes + _TREE)


def file_bytes(costs: Ids, page_bytes: int) -> Ids:
    """Bytes from the start of a record's first page to the end of its last, from its cost."""
    return np.maximum(1, costs // page_bytes) * page_bytes


def group_bytes(max_bytes: int | None) -> int:
    """Largest commit: three of them fit beside the live share of the budget."""
    return 1 << 20 if max_bytes is None else min(1 << 20, max_bytes // 32)


def data_bytes(max_bytes: int | None) -> int | None:
    """What of a byte budget the data file may take; the rest is for the small files beside it."""
    if max_bytes is None:
        return None
    return max_bytes - _SMALL_FILES - index_bytes(max_bytes)


def index_bytes(max_bytes: int) -> int:
    """What of a byte budget the saved index may take."""
    return max_bytes // 128


def check_budget_bytes(max_bytes: int | None) -> None:
    """Refuse a budget that no storage fits in.

    Raises:
        BadInputError: it is below `MIN_BUDGET`.
    """
    if max_bytes is not None and max_bytes < MIN_BUDGET:
        raise BadInputError(
            f"the storage budget is {max_bytes} bytes",
            fix=f"give at least {MIN_BUDGET >> 10} KiB, or a number of records",
        )
