"""Small requests of several steps travel to the swap worker together."""

from __future__ import annotations

from carousel.memory.request import Asked

__all__ = ["Joining"]

_WORTH_ROWS = 32
_SHARE_OF_SLOTS = 16
_MOST_STEPS = 4


class Joining:
    """Keeps what steps ask for until there is enough of it, or the first has waited long enough.

    To wake the worker and to publish what it brings costs the training thread the same for 5 rows
    as for 32: methods that replay few rows a step pay it every third or fourth step. A slot that
    waits cannot be asked for again, so rows wait for at most 3 steps, and no more of them than a
    sixteenth of the slots. In the paper (Lee et al., CarM, DAC 2022) each step's request is sent
    at once; so are requests of 32 rows here.

    Args:
        slots: of the memory.

    Attributes:
        size: rows that wait.

    Example:
        >>> import numpy as np
        >>> joining = Joining(slots=500)
        >>> rows = np.arange(5)
        >>> for step in range(4):
        ...     joining.add(Asked(rows, rows, rows, step, None, 5))
        ...     joining.is_due(step)
        False
        False
        False
        True
        >>> len(joining.take())
        4
    """

    def __init__(self, slots: int) -> None:
        self._worth_rows = min(_WORTH_ROWS, slots // _SHARE_OF_SLOTS)
        self._asked: list[Asked] = []
        self.size = 0

    def add(self, asked: Asked) -> None:
        """Keep what a step asks for."""
        self._asked.append(asked)
        self.size += asked.size

    def is_due(self, step: int) -> bool:
        """Whether what waits should go now, in this step."""
        if not self._asked:
            return False
        return self.size >= self._worth_rows or step - self._asked[0].step >= _MOST_STEPS - 1

    def take(self) -> list[Asked]:
        """What waits, in order; nothing waits any more."""
        asked, self._asked, self.size = self._asked, [], 0
        return asked
