"""Counts distinct ids exactly, at one bit an id."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["DistinctIds"]

Ints = npt.NDArray[np.int64]

_PAGE_BITS = 16
_PAGE_IDS = 1 << _PAGE_BITS
_MOST_PAGES = 4096
_PENDING = 4096


class DistinctIds:
    """A set of ids that can only be counted: pages of 65,536 ids, 8 KiB each, as they are met.

    At most 4,096 pages (32 MiB, 268 million ids in a row); ids beyond them are not counted, and
    `complete` says so.

    Example:
        >>> seen = DistinctIds()
        >>> seen.add(np.array([1, 2, 1, 70_000]))
        >>> seen.count
        3
    """

    def __init__(self) -> None:
        self._pages: dict[int, npt.NDArray[np.uint8]] = {}
        self._pending: list[Ints] = []
        self._waiting = 0
        self.complete = True

    @property
    def count(self) -> int:
        """How many distinct ids were added."""
        self._fold()
        return sum(int(np.bitwise_count(page).sum()) for page in self._pages.values())

    @property
    def nbytes(self) -> int:
        """Bytes of RAM held."""
        return self._waiting * 8 + len(self._pages) * _PAGE_IDS // 8

    def add(self, ids: Ints) -> None:
        """Note (n,) ids of at least 0; cheap, for they are put in their place many at a time.

        The array is kept for a while: it must not change.
        """
        self._pending.append(ids)
        self._waiting += len(ids)
        if self._waiting >= _PENDING:
            self._fold()

    def state_dict(self) -> dict[str, Any]:
        """The pages as tensors."""
        self._fold()
        pages = {number: torch.from_numpy(page.copy()) for number, page in self._pages.items()}
        return {"pages": pages, "complete": self.complete}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._pending, self._waiting = [], 0
        self._pages = {int(number): page.numpy().copy() for number, page in state["pages"].items()}
        self.complete = bool(state["complete"])

    def _fold(self) -> None:
        if self._waiting:
            self._mark(np.concatenate(self._pending))
        self._pending = []
        self._waiting = 0

    def _mark(self, ids: Ints) -> None:
        pages = ids >> _PAGE_BITS
        for number in np.unique(pages).tolist():
            page = self._page(number)
            if page is not None:
                offsets = ids[pages == number] & (_PAGE_IDS - 1)
                bits = np.left_shift(1, offsets & 7).astype(np.uint8)
                np.bitwise_or.at(page, offsets >> 3, bits)

    def _page(self, number: int) -> npt.NDArray[np.uint8] | None:
        if number not in self._pages:
            if len(self._pages) >= _MOST_PAGES:
                self.complete = False
                return None
            self._pages[number] = np.zeros(_PAGE_IDS // 8, np.uint8)
        return self._pages[number]
