"""Where a chunk's gradients and values lie on their way between a device and the host.

A bucket holds chunks one after the other, in the parameters' own dtype. Where there are fp32
masters a chunk takes its room once: its gradients have been cast when its new values take their
place. Elsewhere the kernel updates the values themselves, so they come along and lie beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from carousel.offload.plan import Chunk
from carousel.offload.record import ITEM_BYTES, state_dtype

__all__ = ["NO_BUCKETS", "Berth", "Buckets", "Landing", "berth_of", "make_buckets"]

Landing: TypeAlias = Literal["nowhere", "some"]
"""How much of the gradients lands on the host at a time: ``nowhere``: they are there already."""

LARGEST_BUCKET = 8 << 20
IN_FLIGHT = 4
"""One that comes, one under the kernel, and two that go."""

_ALIGN = 64
_SHARE = 64


@dataclass(frozen=True, slots=True)
class Buckets:
    """Room for chunks that are under way.

    Args:
        count: how many buckets.
        nbytes: of each.
    """

    count: int
    nbytes: int

    @property
    def total_bytes(self) -> int:
        """Of all of them."""
        return self.count * self.nbytes


NO_BUCKETS = Buckets(0, 0)


@dataclass(frozen=True, slots=True)
class Berth:
    """A chunk's place, in bytes from where it begins.

    Args:
        dtype: of gradients and values.
        values: where the values begin; the gradients begin at 0.
        nbytes: of both.
    """

    dtype: str
    values: int
    nbytes: int

    @property
    def shared(self) -> bool:
        """Whether values take the place of the gradients, and none come along."""
        return self.values == 0


def berth_of(chunk: Chunk, *, masters: bool) -> Berth:
    """The place of a chunk.

    Args:
        chunk: of a plan.
        masters: keep fp32 values of 16-bit parameters.

    Example:
        >>> berth_of(Chunk(0, "bfloat16", False, 100, ()), masters=True).nbytes
        256
        >>> berth_of(Chunk(0, "float32", False, 100, ()), masters=True)
        Berth(dtype='float32', values=448, nbytes=896)
    """
    span = -(-chunk.numel * ITEM_BYTES[chunk.dtype] // _ALIGN) * _ALIGN
    if state_dtype(chunk.dtype, masters=masters) != chunk.dtype:
        return Berth(chunk.dtype, 0, span)
    return Berth(chunk.dtype, span, 2 * span)


def make_buckets(
    chunks: Sequence[Chunk], landing: Landing, *, masters: bool, budget: int | None
) -> Buckets:
    """As many buckets as keep both ways busy, of 8 MiB: large enough for the bus's full speed.

    A budget makes them smaller, down to the largest chunk, so that they take a sixteenth of it.

    Args:
        chunks: of a plan.
        landing: how much is under way at a time.
        masters: keep fp32 values of 16-bit parameters.
        budget: bytes of RAM for everything, None for no limit.

    Example:
        >>> make_buckets([Chunk(0, "bfloat16", False, 128, ())], "some", masters=True, budget=None)
        Buckets(count=1, nbytes=256)
    """
    sizes = [berth_of(chunk, masters=masters).nbytes for chunk in chunks]
    if landing == "nowhere" or not sizes:
        return NO_BUCKETS
    wished = LARGEST_BUCKET if budget is None else min(LARGEST_BUCKET, budget // _SHARE)
    nbytes = max(*sizes, min(wished, sum(sizes)) // _ALIGN * _ALIGN)
    return Buckets(min(IN_FLIGHT, -(-sum(sizes) // nbytes)), nbytes)
