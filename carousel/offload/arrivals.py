"""Which chunks are final: all gradients of theirs that a backward pass makes have come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container

from carousel.offload.plan import Plan

__all__ = ["Arrivals"]


class Arrivals:
    """The gradients of one backward pass, as they come.

    Args:
        plan: of the chunks.
        expected: numbers of the parameters whose gradients a chunk waits for.

    Attributes:
        chunks: those that wait for any, by number.

    Example:
        >>> from carousel.offload.plan import ParamSpec, make_plan
        >>> plan = make_plan([ParamSpec((100,), "float32"), ParamSpec((3,), "float32")], 128)
        >>> arrivals = Arrivals(plan, range(2))
        >>> arrivals.add(1), arrivals.add(0), 1 in arrivals
        ([], [0], True)
    """

    def __init__(self, plan: Plan, expected: Container[int]) -> None:
        self._chunks: defaultdict[int, list[int]] = defaultdict(list)
        self._missing: dict[int, int] = {}
        for chunk in plan.chunks:
            numbers = {s.param for s in chunk.segments if s.param in expected}
            if numbers:
                self._missing[chunk.index] = len(numbers)
            for number in numbers:
                self._chunks[number].append(chunk.index)
        self.chunks = list(self._missing)
        self._arrived: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._arrived

    def add(self, number: int) -> list[int]:
        """A gradient has come.

        Returns:
            The chunks that are final by it, by number.
        """
        self._arrived.add(number)
        final = []
        for chunk in self._chunks[number]:
            self._missing[chunk] -= 1
            if not self._missing[chunk]:
                final.append(chunk)
        return final
