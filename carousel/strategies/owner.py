"""Which strategy a memory was set up for."""

from __future__ import annotations

import weakref
from typing import Any

from carousel.errors import BadInputError

__all__ = ["Owner"]


class Owner:
    """The last strategy that was made with a memory: its rules are in force, nobody else's.

    Example:
        >>> class Strategy: ...
        >>> owner, one, other = Owner(), Strategy(), Strategy()
        >>> owner.check(other)  # a memory that nobody claimed serves anybody
        >>> owner.claim(one, "BiC")
        >>> owner.check(one)
        >>> owner.check(other)
        Traceback (most recent call last):
        ...
        carousel.errors.BadInputError: the memory was set up for BiC, and another strategy \
trains with it: give each strategy a CarMPlugin of its own
    """

    def __init__(self) -> None:
        self._method = ""
        self._claimed: weakref.ref[Any] | None = None

    def claim(self, strategy: Any, method: str) -> None:
        """The memory follows this strategy's rules from now on."""
        self._claimed, self._method = weakref.ref(strategy), method

    def check(self, strategy: Any) -> None:
        """Refuse a strategy whose rules are not those of the memory.

        Raises:
            BadInputError: another strategy claimed the memory after it, or instead of it.
        """
        if self._claimed is not None and self._claimed() is not strategy:
            raise BadInputError(
                f"the memory was set up for {self._method}, and another strategy trains with it",
                fix="give each strategy a CarMPlugin of its own",
            )
