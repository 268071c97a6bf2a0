"""A pass over the chunks of some states, one chunk at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
        visits: those of the file in the order in which they are going to be; the others are
            spread among them, for the kernel to work on while the disk brings the next one.
        ahead: begins to read them.
        lend: a chunk's fields. Where nothing is loaded they hold anything.
        chunks: of the plan.
        pinned: how many of them, from the first, stay in RAM.
    """

    def __init__(
        self,
        visits: Sequence[Visit],
        *,
        ahead: Callable[[Sequence[Visit]], None],
        lend: Lend,
        chunks: Sequence[Chunk],
        pinned: int,
    ) -> None:
        self._ahead, self._lend, self._chunks, self._pinned = ahead, lend, chunks, pinned
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

    def runs(self) -> Iterator[list[tuple[Chunk, Fields]]]:
        """All that are left; chunks that stay in RAM come together where they follow each other."""
        while self._rest:
            with ExitStack() as lent:
                run = [lent.enter_context(self.visit())]
                while (
                    self._in_ram(run[-1][0]) and self.next is not None and self._in_ram(self.next)
                ):
                    run.append(lent.enter_context(self.visit()))
                yield run

    def turn_to(self, visits: Sequence[Visit]) -> None:
        """Pass over these instead of the rest."""
        self._rest = deque(_spread(visits, self._pinned))
        self._ahead(visits)

    def __iter__(self) -> Iterator[tuple[Chunk, Fields]]:
        while self._rest:
            with self.visit() as lent:
                yield lent

    def _in_ram(self, chunk: Chunk) -> bool:
        return chunk.index < self._pinned


def _spread(visits: Sequence[Visit], pinned: int) -> Iterator[Visit]:
    """The visits with those of chunks in RAM between the others, evenly."""
    resident = [visit for visit in visits if visit.chunk < pinned]
    streamed = [visit for visit in visits if visit.chunk >= pinned]
    gaps, done = max(1, len(streamed)), 0
    for number in range(gaps):
        after = len(resident) * (number + 1) // gaps
        yield from resident[done:after]
        yield from streamed[number : number + 1]
        done = after
