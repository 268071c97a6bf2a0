"""Gradients to the ranks that own their chunks, and new values back: in rounds, piece by piece.

A round is one chunk of every rank. Gradients go by an all-to-all and a sum in the order of the
ranks, which is a reduce-scatter whose result does not depend on how a library groups its sums;
16-bit gradients travel as they are and are summed in fp32. Values go by an all-gather.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from carousel.offload.pieces import Pieces
from carousel.offload.plan import Chunk, Plan, Round
from carousel.offload.ring import anonymous

if TYPE_CHECKING:
    from carousel.offload.ranks import Ranks

__all__ = ["NONE", "PLAIN", "WIDE", "Exchange"]

NONE, PLAIN, WIDE = range(3)
"""A parameter's gradient: none, of the parameter's dtype, or fp32 for a 16-bit parameter."""


class Exchange:
    """The traffic between ranks for the chunks of a plan.

    Args:
        ranks: that share them.
        plan: of this one.
        pieces: what moves at a time.
    """

    def __init__(self, ranks: Ranks, plan: Plan, pieces: Pieces) -> None:
        self._ranks, self._plan, self._pieces = ranks, plan, pieces
        self._rank, self._world = plan.share.rank, plan.share.world
        slab = torch.from_numpy(anonymous(pieces.total_bytes))
        side = self._world * pieces.numel * pieces.item_bytes
        self._out, self._in, self._sum = slab[:side], slab[side : 2 * side], slab[2 * side :]

    def average(
        self, kinds: Sequence[int], grads: Mapping[int, Tensor], weights: Sequence[float]
    ) -> None:
        """Put the ranks' mean gradients in place of this rank's, in the chunks that it owns.

        Args:
            kinds: of the parameters' gradients by number, `NONE`, `PLAIN` or `WIDE`, the largest
                over the ranks: where one of them has a gradient, the others count as zeros.
            grads: this rank's, by number, one-dimensional; of all parameters of which any rank
                has one and this rank owns a part.
            weights: what each rank's gradients are multiplied by, before the sum is divided by
                the number of ranks.

        Raises:
            WorkerError: a rank is gone.
        """
        for turn in self._turns(kinds):
            dtype = _wire(turn, kinds)
            for begin, count in self._spans(turn):
                out = _rows(self._out, dtype, self._world, count)
                got = _rows(self._in, dtype, self._world, count)
                for row, chunk in zip(out, turn, strict=True):
                    _pack(row.zero_(), chunk, begin, grads)
                self._ranks.trade(_raw(got), _raw(out))
                total = self._mean(got, weights)
                for part in _parts(turn[self._rank], begin, count):
                    if kinds[part.param]:
                        part.of(grads[part.param]).copy_(total[part.here])

    def spread(self, kinds: Sequence[int], params: Sequence[Tensor]) -> None:
        """Give the parameters the values that other ranks have updated.

        Args:
            kinds: see `average`; parameters without a gradient are left alone.
            params: by number, one-dimensional.

        Raises:
            WorkerError: a rank is gone.
        """
        values = dict(enumerate(params))
        for turn in self._turns(kinds):
            dtype: torch.dtype = getattr(torch, _first(turn).dtype)
            for begin, count in self._spans(turn):
                own = _rows(self._out, dtype, 1, count)[0]
                got = _rows(self._in, dtype, self._world, count)
                _pack(own, turn[self._rank], begin, values)
                self._ranks.spread(_raw(got), _raw(own))
                for rank, chunk in enumerate(turn):
                    if rank != self._rank:
                        _unpack(got[rank], chunk, begin, values, kinds)

    def square_sum(self, kinds: Sequence[int], grads: Mapping[int, Tensor]) -> float:
        """The sum of the squares of all mean gradients, the same bits on every rank.

        Raises:
            WorkerError: a rank is gone.
        """
        norms = [
            torch.linalg.vector_norm(part.of(grads[part.param]), dtype=torch.float64)
            for part in self._owned(kinds)
        ]
        own = torch.tensor([float(norm) ** 2 for norm in norms], dtype=torch.float64, device="cpu")
        return float(sum(self._ranks.heard(own.sum().reshape(1)).flatten().tolist()))

    def scale(self, kinds: Sequence[int], grads: Mapping[int, Tensor], factor: float) -> None:
        """Multiply the mean gradients of the chunks that this rank owns."""
        for part in self._owned(kinds):
            part.of(grads[part.param]).mul_(factor)

    def _turns(self, kinds: Sequence[int]) -> Iterator[Round]:
        """The rounds in which any parameter has a gradient; the same ones on all ranks."""
        for turn in self._plan.rounds:
            if any(kinds[s.param] for chunk in turn if chunk is not None for s in chunk.segments):
                yield turn

    def _spans(self, turn: Round) -> Iterator[tuple[int, int]]:
        longest = max(chunk.numel for chunk in turn if chunk is not None)
        for begin in range(0, longest, self._pieces.numel):
            yield begin, min(self._pieces.numel, longest - begin)

    def _owned(self, kinds: Sequence[int]) -> Iterator[_Part]:
        for chunk in self._plan.chunks:
            for part in _parts(chunk, 0, chunk.numel):
                if kinds[part.param]:
                    yield part

    def _mean(self, got: Tensor, weights: Sequence[float]) -> Tensor:
        """The weighted mean of rows, in fp32 where they are of 16 bits."""
        dtype = torch.float32 if got.element_size() == 2 else got.dtype
        total = _rows(self._sum, dtype, 1, got.shape[1])[0].zero_()
        for row, weight in zip(got, weights, strict=True):
            total.add_(row, alpha=weight)
        return total.div_(self._world)


@dataclass(frozen=True, slots=True)
class _Part:
    """Elements ``start .. start + length`` of a parameter, and where they are in a piece."""

    param: int
    start: int
    length: int
    at: int

    @property
    def here(self) -> slice:
        return slice(self.at, self.at + self.length)

    def of(self, whole: Tensor) -> Tensor:
        return whole[self.start : self.start + self.length]


def _parts(chunk: Chunk | None, begin: int, count: int) -> Iterator[_Part]:
    """What elements ``begin .. begin + count`` of a chunk are."""
    for segment in () if chunk is None else chunk.segments:
        low = max(begin, segment.offset)
        high = min(begin + count, segment.offset + segment.length)
        if low < high:
            start = segment.start + low - segment.offset
            yield _Part(segment.param, start, high - low, low - begin)


def _pack(row: Tensor, chunk: Chunk | None, begin: int, values: Mapping[int, Tensor]) -> None:
    for part in _parts(chunk, begin, len(row)):
        whole = values.get(part.param)
        if whole is not None:
            row[part.here].copy_(part.of(whole))


def _unpack(
    row: Tensor,
    chunk: Chunk | None,
    begin: int,
    values: Mapping[int, Tensor],
    kinds: Sequence[int],
) -> None:
    for part in _parts(chunk, begin, len(row)):
        if kinds[part.param]:
            part.of(values[part.param]).copy_(row[part.here])


def _wire(turn: Round, kinds: Sequence[int]) -> torch.dtype:
    """The dtype in which a round's gradients travel."""
    chunks = [chunk for chunk in turn if chunk is not None]
    wide = any(kinds[s.param] == WIDE for chunk in chunks for s in chunk.segments)
    dtype: torch.dtype = torch.float32 if wide else getattr(torch, chunks[0].dtype)
    return dtype


def _first(turn: Round) -> Chunk:
    return next(chunk for chunk in turn if chunk is not None)


def _rows(slab: Tensor, dtype: torch.dtype, count: int, numel: int) -> Tensor:
    """The beginning of a slab as (count, numel) of a dtype."""
    return slab[: count * numel * dtype.itemsize].view(dtype).view(count, numel)


def _raw(rows: Tensor) -> Tensor:
    return rows.reshape(-1).view(torch.uint8)
