"""A pass over the chunks of some states, one chunk at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from carousel.offload.engine import Visit
from carousel.offload.plan import Chunk
from carousel.offload.ring import Fields

__all__ = ["Lend", "Sweep"]

Lend: TypeAlias = Callable[[Visit], AbstractContextManager[Fields]]
"""Lends a chunk's fields; what is made of them is kept when they are given back."""


class Sweep:
    """Chunks still to be passed over; the next ones are read meanwhile.

    Args:
        visits: in the order in which they are going to be.
        ahead: begins to read them.
        lend: a chunk's fields. Where nothing is loaded they hold anything.
        chunks: of the plan.
    """

    def __init__(
        self,
        visits: Sequence[Visit],
        *,
        ahead: Callable[[Sequence[Visit]], None],
        lend: Lend,
        chunks: Sequence[Chunk],
    ) -> None:
        self._ahead, self._lend, self._chunks = ahead, lend, chunks
        self.turn_to(visits)

    @property
    def next(self) -> Chunk | None:
        """The chunk that `visit` is going to lend, None at the end."""
        return self._chunks[self._rest[0].chunk] if self._rest else None

    @property
    def rest(self) -> list[Chunk]:
        """All chunks that are still to be lent."""
        return [self._chunks[visit.chunk] for visit in self._rest]

    @contextmanager
    def visit(self) -> Iterator[tuple[Chunk, Fields]]:
        """The next chunk; what the block makes of its fields is kept, unless it ends in an error.

        Raises:
            CarouselError: what a thread met.
        """
        visit = self._rest.popleft()
        with self._lend(visit) as fields:
            yield self._chunks[visit.chunk], fields

    def turn_to(self, visits: Sequence[Visit]) -> None:
        """Pass over these instead of the rest."""
        self._rest = deque(visits)
        self._ahead(visits)

    def __iter__(self) -> Iterator[tuple[Chunk, Fields]]:
        while self._rest:
            with self.visit() as lent:
                yield lent
