"""States that several ranks hold parts of, as one source; for moves, and for a whole state_dict.

Which rank has what changes when parameters do, so whoever wants a part asks all ranks for it at the
same time: the one that has an element puts its bytes in, the others zeros, and the bytes are added
up. That is exact, and takes a buffer of fixed size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from carousel.errors import CarouselError, WorkerError
from carousel.offload.engine import Visit
from carousel.offload.plan import Chunk, Segment
from carousel.offload.record import RecordLayout, layout_of
from carousel.offload.ring import Fields
from carousel.offload.sources import OldStates, fill_chunk
from carousel.offload.states import States

if TYPE_CHECKING:
    from carousel.offload.ranks import Ranks

__all__ = ["SharedStates", "fill_together"]

_PIECE = 1 << 15
"""Elements that are asked for at once."""


class SharedStates:
    """The states of another plan, on all ranks; see `OldStates`.

    Args:
        states: of this rank; nothing is under way in them.
        numbers: of the parameters there, by their numbers here; the others have no states.
        ranks: all of them ask for the same parts, in the same order.
    """

    def __init__(self, states: States, numbers: Mapping[int, int], ranks: Ranks) -> None:
        self._own = OldStates(states, numbers)
        self._specs, self._numbers, self._ranks = states.plan.specs, numbers, ranks

    def has(self, param: int) -> bool:
        """See `Source.has`."""
        before = self._numbers.get(param)
        return before is not None and self._specs[before].stored and self._specs[before].numel > 0

    def put(self, param: int, start: int, into: Fields) -> None:
        """See `Source.put`; views of equal length, and on all ranks the same ones.

        Raises:
            StorageError: a record cannot be read. `WorkerError`: one of another rank cannot.
        """
        length = len(next(iter(into.values())))
        for begin in range(0, length, _PIECE):
            views = {name: view[begin : begin + _PIECE] for name, view in into.items()}
            self._merge(param, start + begin, views)

    def lend(self, segment: Segment, names: Sequence[str], dtype: torch.dtype) -> None:
        """Put in what another rank asks for."""
        for begin in range(0, segment.length, _PIECE):
            count = min(_PIECE, segment.length - begin)
            views = {name: torch.empty(count, dtype=dtype, device="cpu") for name in names}
            self._merge(segment.param, segment.start + begin, views)

    def _merge(self, param: int, start: int, views: Fields) -> None:
        sizes = [view.numel() * view.element_size() for view in views.values()]
        raw = torch.zeros(sum(sizes) + 1, dtype=torch.uint8, device="cpu")  # last: one has failed
        parts = torch.split(raw[:-1], sizes)
        mine = {n: p.view(v.dtype) for (n, v), p in zip(views.items(), parts, strict=True)}
        problem: CarouselError | None = None
        try:
            self._own.put_own(param, start, mine)
        except CarouselError as error:
            problem = error
            raw.fill_(0)[-1] = 1
        self._ranks.merge(raw)
        if raw[-1]:
            raise problem or WorkerError("another rank could not read its part of the states")
        for name, view in views.items():
            view.copy_(mine[name])


def fill_together(
    states: States, source: SharedStates, params: Sequence[Tensor], step: int, *, every: bool
) -> None:
    """Give new states their content; see `sources.fill`.

    All ranks go through all chunks of all ranks, in the order of the whole plan's rounds.
    """
    plan, rank = states.plan, states.plan.share.rank
    wanted = [
        chunk.index
        for chunk in plan.chunks
        if every or any(source.has(segment.param) for segment in chunk.segments)
    ]
    sweep = states.sweep([Visit(index, load=False) for index in wanted], step)
    for owner, chunk in _in_turn(plan.rounds):
        known = [segment for segment in chunk.segments if source.has(segment.param)]
        if owner != rank:
            layout = _layout(states, chunk)
            for segment in known:
                source.lend(segment, layout.needed, getattr(torch, layout.dtype))
        elif every or known:
            with sweep.visit() as (own, fields):
                fill_chunk(own, states.room.layouts[own.index], fields, source, params)


def _in_turn(rounds: Sequence[Sequence[Chunk | None]]) -> Iterator[tuple[int, Chunk]]:
    for turn in rounds:
        yield from ((rank, chunk) for rank, chunk in enumerate(turn) if chunk is not None)


def _layout(states: States, chunk: Chunk) -> RecordLayout:
    wishes = states.wishes
    return layout_of(chunk, masters=wishes.masters, recoverable=wishes.recoverable)
