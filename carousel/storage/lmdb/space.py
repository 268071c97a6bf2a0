"""How much room there is for records: the budget, the trees around them, a disk that is full."""

from __future__ import annotations

import logging
import sys
from typing import Any

from carousel.errors import TierFullError
from carousel.storage.columns import Ids
from carousel.storage.disk import free_bytes
from carousel.storage.index import Index
from carousel.storage.limits import Limits
from carousel.storage.lmdb.environment import Environment
from carousel.storage.lmdb.pages import LIVE_SHARE

__all__ = ["Space"]

logger = logging.getLogger("carousel.storage")

_SLACK_PAGES = 32
_TOUCHED_SHARE = 0.03
_LIFTED = 8 << 20
_LARGEST_SHARE = 16


class Space:
    """Room in one data file.

    Copy-on-write needs free pages: what a transaction frees can be used two transactions later.
    So live pages may take 85 % of the budget, and one transaction may touch a small part of it.

    Args:
        env: the environment.
        index: what is stored, with the cost of each record.
        limits: the budget, in records and in bytes of the file.
    """

    def __init__(self, env: Environment, index: Index, limits: Limits) -> None:
        self._env = env
        self._index = index
        self._budget = limits
        self._ceiling: int | None = None

    @property
    def disk_was_full(self) -> bool:
        """Whether the file may not grow until the disk has room again."""
        return self._ceiling is not None

    def disk_is_full(self) -> None:
        """From now on the file's present size is the budget, until the disk has room again."""
        if self._ceiling is None:
            logger.warning("the disk of %s is full: what is stored makes room now", self._env.path)
        self._ceiling = self._env.file_bytes

    def full_error(self) -> TierFullError:
        """What to say when the rule made no room."""
        if self.disk_was_full:
            return TierFullError(f"the disk of {self._env.path} is full and nothing was evicted")
        return TierFullError(
            f"the storage at {self._env.path} is full, or a sample takes more than 1/"
            f"{_LARGEST_SHARE} of it; raise its budget or choose another eviction rule"
        )

    def limits(self, costs: Ids, tight: int = 0) -> Limits:
        """What records may come to, in the unit of the index's lengths.

        Args:
            costs: of the records that are to enter; room for the largest is never denied.
            tight: bytes to leave free beyond that.
        """
        size = self._size()
        if size is None:
            return self._budget
        with self._env.read() as txn:
            trees = max(0, self._env.live_bytes(txn) - self._index.total_length)
        slack = _SLACK_PAGES * self._env.page_bytes
        room = int(size * LIVE_SHARE) - trees - slack - tight
        return Limits(self._budget.max_records, max(int(costs.max(initial=1)), room))

    def excess(self, txn: Any) -> int:
        """Bytes by which the pages of an open transaction exceed their share of the budget."""
        if self._budget.max_bytes is None:
            return 0
        return self._env.live_bytes(txn) - int(self._budget.max_bytes * LIVE_SHARE)

    def deletes_at_once(self) -> int | None:
        """Records that one transaction may remove, None for any number.

        Each may copy a leaf of its own, and there is room for about three such transactions.
        """
        size = self._size()
        if size is None:
            return None
        allowed = max(8, int(size * _TOUCHED_SHARE) // self._env.page_bytes)
        with self._env.read() as txn:
            return None if self._env.leaf_pages(txn) <= allowed else allowed

    def largest_record(self) -> int:
        """Cost of the largest record that is taken in.

        A larger one needs so many free pages next to each other that most others had to leave.
        """
        budget = self._budget.max_bytes
        return sys.maxsize if budget is None else budget // _LARGEST_SHARE

    def is_large(self, cost: int) -> bool:
        """Whether a commit of this size must not wait for its own evictions to become free.

        The pages that it replaced, those before and its new ones would fill the file, and then
        no transaction could be written any more, not even one that deletes.
        """
        size = self._size()
        return size is not None and cost > size * (1 - LIVE_SHARE) / 3

    def _size(self) -> int | None:
        """Bytes that the file may come to, None when only the disk limits it."""
        if self._ceiling is not None and free_bytes(self._env.path) > _LIFTED:
            self._ceiling = None
        sizes = [size for size in (self._budget.max_bytes, self._ceiling) if size is not None]
        return min(sizes, default=None)
