"""Which elements of which parameters share a chunk: the unit that is read, updated and written.

A parameter is cut where its element number is a multiple of 64: the fused kernel's vector body and
its scalar tail round differently, and such cuts leave every element in the part it would be in
without them. Small parameters share a chunk, each with a place of its own in it. Chunks follow the
reverse of the order in which parameters were registered, which is about the order in which their
gradients become ready.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from typing import Any, TypeAlias

from xxhash import xxh3_128_hexdigest

from carousel.errors import BadInputError

__all__ = ["CUT", "WHOLE", "Chunk", "ParamSpec", "Plan", "Round", "Segment", "Share", "make_plan"]

CUT = 64
"""Parameters are cut at multiples of this many elements."""

_ALIGN = 16
"""Segments begin at multiples of this many elements of their chunk: a cache line of fp32."""


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """What a plan knows of a parameter.

    Args:
        shape: its shape.
        dtype: name of its dtype, such as ``"float32"``.
        amsgrad: whether its states have a third part, the largest second moments.
        stored: False for a frozen parameter that has no states.
    """

    shape: tuple[int, ...]
    dtype: str
    amsgrad: bool = False
    stored: bool = True

    @property
    def numel(self) -> int:
        """Its elements."""
        count = 1
        for side in self.shape:
            count *= side
        return count


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements ``start .. start + length`` of a parameter, at `offset` of their chunk."""

    param: int
    start: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Segments of one dtype that travel together.

    Args:
        index: its number in the plan.
        dtype: of the parameters.
        amsgrad: whether there are largest second moments.
        numel: elements from the first segment's begin to the last one's end.
        segments: in order of `offset`.
    """

    index: int
    dtype: str
    amsgrad: bool
    numel: int
    segments: tuple[Segment, ...]


Round: TypeAlias = tuple["Chunk | None", ...]
"""Chunks of one dtype that the processes have at the same time, by rank; None: there is none."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the work that one of several processes has.

    Args:
        rank: of the process, from 0.
        world: how many there are.

    Example:
        >>> Share(1, 4).folder
        'rank-1-of-4'
    """

    rank: int = 0
    world: int = 1

    @property
    def folder(self) -> str:
        """What the folder of its states is called, within that of all of them."""
        return f"rank-{self.rank}-of-{self.world}"


WHOLE = Share()
"""Of a process that does all the work."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The chunks of some parameters that are one process's to update.

    Attributes:
        specs: the parameters, in the order of their groups.
        chunk_numel: most elements of a chunk.
        chunks: of the share, by number.
        digest: 32 hexadecimal digits that differ when anything of this does.
        share: which chunks they are.
        rounds: all chunks of all processes, numbered as in the plan of one process.
    """

    specs: tuple[ParamSpec, ...]
    chunk_numel: int
    chunks: tuple[Chunk, ...]
    digest: str = field(compare=False)
    share: Share = WHOLE
    rounds: tuple[Round, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        """What `make_plan` needs to make it again, as plain types."""
        plain = {
            "chunk_numel": self.chunk_numel,
            "specs": [[list(s.shape), s.dtype, s.amsgrad, s.stored] for s in self.specs],
        }
        if self.share == WHOLE:
            return plain
        return {**plain, "share": [self.share.rank, self.share.world]}

    @staticmethod
    def from_json(saved: dict[str, Any]) -> Plan:
        """The plan of `to_json`."""
        specs = [ParamSpec(tuple(shape), *rest) for shape, *rest in saved["specs"]]
        return make_plan(specs, int(saved["chunk_numel"]), Share(*saved.get("share", (0, 1))))


def make_plan(specs: Sequence[ParamSpec], chunk_numel: int, share: Share = WHOLE) -> Plan:
    """Cut and pack parameters.

    Processes take turns at the chunks of a dtype: one chunk each makes a round.

    Args:
        specs: in the order of the optimizer's groups.
        chunk_numel: most elements of a chunk, a multiple of 64.
        share: of the process.

    Raises:
        BadInputError: `chunk_numel` is no positive multiple of 64.

    Example:
        >>> plan = make_plan([ParamSpec((100,), "float32"), ParamSpec((3,), "float32")], 64)
        >>> [[(s.param, s.start, s.length) for s in chunk.segments] for chunk in plan.chunks]
        [[(1, 0, 3)], [(0, 0, 64)], [(0, 64, 36)]]
        >>> plan = make_plan([ParamSpec((640,), "float32")], 64, Share(1, 4))
        >>> [chunk.segments[0].start for chunk in plan.chunks]
        [64, 320, 576]
    """
    if chunk_numel < CUT or chunk_numel % CUT:
        raise BadInputError(
            f"chunk_numel is {chunk_numel}", fix=f"give a positive multiple of {CUT}"
        )
    chunks: list[Chunk] = []
    for (dtype, amsgrad), run in groupby(_pieces(specs, chunk_numel), key=lambda piece: piece[0]):
        for packed in _pack((piece[1:] for piece in run), chunk_numel):
            end = packed[-1].offset + packed[-1].length
            chunks.append(Chunk(len(chunks), dtype, amsgrad, end, tuple(packed)))
    rounds = _rounds(chunks, share.world)
    plan = Plan(tuple(specs), chunk_numel, _shared(chunks, rounds, share), "", share, rounds)
    text = json.dumps(plan.to_json(), separators=(",", ":"))
    return replace(plan, digest=xxh3_128_hexdigest(text.encode()))


def _rounds(chunks: Sequence[Chunk], world: int) -> tuple[Round, ...]:
    rounds: list[Round] = []
    for dtype in dict.fromkeys(chunk.dtype for chunk in chunks):
        alike = [chunk for chunk in chunks if chunk.dtype == dtype]
        rounds += zip_longest(*(alike[rank::world] for rank in range(world)))
    return tuple(rounds)


def _shared(chunks: Sequence[Chunk], rounds: Sequence[Round], share: Share) -> tuple[Chunk, ...]:
    if share == WHOLE:
        return tuple(chunks)
    own = [chunk for turn in rounds if (chunk := turn[share.rank]) is not None]
    return tuple(replace(chunk, index=number) for number, chunk in enumerate(own))


_Piece = tuple[tuple[str, bool], int, int, int]


def _pieces(specs: Sequence[ParamSpec], chunk_numel: int) -> list[_Piece]:
    """(kind, parameter, start, length) of pieces that fit into a chunk, kind by kind."""
    pieces = [
        ((spec.dtype, spec.amsgrad), number, start, min(chunk_numel, spec.numel - start))
        for number, spec in reversed(list(enumerate(specs)))
        if spec.stored
        for start in range(0, spec.numel, chunk_numel)
    ]
    kinds = list(dict.fromkeys(piece[0] for piece in pieces))
    return sorted(pieces, key=lambda piece: kinds.index(piece[0]))


def _pack(pieces: Iterable[tuple[int, int, int]], chunk_numel: int) -> list[list[Segment]]:
    """Pieces side by side, a new chunk where the next one does not fit."""
    chunks: list[list[Segment]] = []
    free = 0
    for param, start, length in pieces:
        if not chunks or length > free:
            chunks.append([])
            free = chunk_numel
        chunks[-1].append(Segment(param, start, length, chunk_numel - free))
        free = max(0, free - -(-length // _ALIGN) * _ALIGN)
    return chunks
