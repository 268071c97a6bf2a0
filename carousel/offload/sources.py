"""Where the content of new states comes from: a state_dict, or the states that they replace."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from carousel.offload.engine import Visit
from carousel.offload.plan import Chunk, Segment
from carousel.offload.record import PARAM, RecordLayout
from carousel.offload.ring import Fields
from carousel.offload.states import States

__all__ = [
    "MASTER",
    "STATE_NAMES",
    "OldStates",
    "Packed",
    "Source",
    "fill",
    "fill_chunk",
    "gather",
]

STATE_NAMES = {"m": "exp_avg", "v": "exp_avg_sq", "vmax": "max_exp_avg_sq"}
"""What ``torch.optim.AdamW`` calls the fields of a record."""

MASTER = "master"
"""What the fp32 value of a 16-bit parameter is called beside them."""


class Source(Protocol):
    """Gives parts of parameters' states."""

    def has(self, param: int) -> bool:
        """Whether it has states of a parameter."""
        ...

    def put(self, param: int, start: int, into: Fields) -> None:
        """Copy states into views of equal length, from element `start` on.

        A field that it has not got is left as it is.
        """
        ...


class Packed:
    """A state_dict's tensors.

    Args:
        state: by number of the parameter: torch's names, and ``master``, to tensors.
    """

    def __init__(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        self._state = state

    def has(self, param: int) -> bool:
        """See `Source.has`."""
        return "exp_avg" in self._state.get(param, {})

    def put(self, param: int, start: int, into: Fields) -> None:
        """See `Source.put`."""
        kept = self._state[param]
        for name, view in into.items():
            value = kept.get(MASTER if name == PARAM else STATE_NAMES[name])
            if value is not None:
                view.copy_(value.reshape(-1)[start : start + len(view)])


class OldStates:
    """The states of another plan.

    Args:
        states: nothing is under way in them.
        numbers: of the parameters there, by their numbers here; the others have no states.
    """

    def __init__(self, states: States, numbers: Mapping[int, int]) -> None:
        self._states, self._numbers = states, numbers
        self._where: dict[int, list[tuple[Chunk, Segment]]] = {}
        for chunk in states.plan.chunks:
            for segment in chunk.segments:
                self._where.setdefault(segment.param, []).append((chunk, segment))
        for found in self._where.values():
            found.sort(key=lambda place: place[1].start)
        self._read: tuple[int, Fields | None] = (-1, None)

    def has(self, param: int) -> bool:
        """See `Source.has`."""
        return self._numbers.get(param) in self._where

    def put(self, param: int, start: int, into: Fields) -> None:
        """See `Source.put`."""
        places = self._where[self._numbers[param]]
        length = len(next(iter(into.values())))
        at = bisect_right(places, start, key=lambda place: place[1].start) - 1
        done = 0
        while done < length:
            chunk, segment = places[at]
            skip = start + done - segment.start
            count = min(segment.length - skip, length - done)
            fields = self._fields(chunk.index)
            begin = segment.offset + skip
            for name, view in into.items():
                part = view[done : done + count]
                if fields is not None and name in fields:
                    part.copy_(fields[name][begin : begin + count])
                elif name != PARAM:
                    part.zero_()
            done, at = done + count, at + 1

    def put_own(self, param: int, start: int, into: Fields) -> None:
        """Like `put`, where some elements may be in other states: their views are left as are."""
        length = len(next(iter(into.values())))
        for chunk, segment in self._where.get(self._numbers[param], []):
            begin = max(start, segment.start)
            end = min(start + length, segment.start + segment.length)
            fields = self._fields(chunk.index) if begin < end else None
            for name, view in into.items():
                if fields is not None and name in fields:
                    there = slice(begin - segment.start, end - segment.start)
                    part = fields[name][segment.offset : segment.offset + segment.length][there]
                    view[begin - start : end - start].copy_(part)

    def _fields(self, chunk: int) -> Fields | None:
        if self._read[0] != chunk:
            self._read = chunk, None  # the one before goes before the next one comes
            self._read = chunk, self._states.read(chunk)
        return self._read[1]


def fill(
    states: States, source: Source, params: Sequence[Tensor], step: int, *, every: bool
) -> None:
    """Give new states their content.

    Args:
        states: new ones.
        source: of the content; a parameter that it has not got has no states, and nobody asks.
        params: the live parameters, in the order of the plan: what masters begin with.
        step: that the records are of.
        every: write also chunks without states, so that their parameters can be recovered.
    """
    chunks = states.plan.chunks
    wanted = [c.index for c in chunks if every or any(source.has(s.param) for s in c.segments)]
    for chunk, fields in states.sweep([Visit(index, load=False) for index in wanted], step):
        fill_chunk(chunk, states.room.layouts[chunk.index], fields, source, params)


def fill_chunk(
    chunk: Chunk,
    layout: RecordLayout,
    fields: Fields,
    source: Source,
    params: Sequence[Tensor],
) -> None:
    """Give a new chunk its content; see `fill`."""
    for value in fields.values():
        value.zero_()
    for segment in chunk.segments:
        views = {
            name: value[segment.offset : segment.offset + segment.length]
            for name, value in fields.items()
        }
        if PARAM in views:
            flat = params[segment.param].detach().view(-1)
            views[PARAM].copy_(flat[segment.start : segment.start + segment.length])
        if source.has(segment.param):
            source.put(segment.param, segment.start, {name: views[name] for name in layout.needed})


def gather(
    source: Source, param: Tensor, number: int, *, dtype: torch.dtype, amsgrad: bool
) -> Fields:
    """The states of a parameter as new tensors of its shape, under the names that torch uses.

    Args:
        source: of the states.
        param: the live parameter.
        number: of the parameter in the plan.
        dtype: of the states; another one than the parameter's means that there is a master.
        amsgrad: whether there are largest second moments.
    """
    names = ["m", "v", "vmax"] if amsgrad else ["m", "v"]
    names += [PARAM] if dtype != param.dtype else []
    made = {name: torch.zeros(param.shape, dtype=dtype, device="cpu") for name in names}
    if param.numel():
        source.put(number, 0, {name: value.view(-1) for name, value in made.items()})
    return {MASTER if name == PARAM else STATE_NAMES[name]: made[name] for name in names}
