"""How much of a chunk ranks exchange at a time, and the RAM that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from carousel.offload.plan import CUT, Plan
from carousel.offload.record import ITEM_BYTES

__all__ = ["NO_PIECES", "Pieces", "make_pieces"]

MOST_ELEMENTS = 1 << 20
LEAST_ELEMENTS = 1 << 10
_SHARE = 16


@dataclass(frozen=True, slots=True)
class Pieces:
    """Room for what a rank sends, for what it gets, and for the sum.

    Args:
        numel: elements that a rank sends to each other one at a time.
        world: ranks.
        item_bytes: of an element.
    """

    numel: int
    world: int
    item_bytes: int

    @property
    def total_bytes(self) -> int:
        """Of all of it."""
        return (2 * self.world + 1) * self.numel * self.item_bytes


NO_PIECES = Pieces(0, 0, 0)


def make_pieces(plan: Plan, budget: int | None) -> Pieces:
    """About 1 Mi elements from all ranks at a time, less where that is 1/16 of a budget.

    Args:
        plan: of the chunks.
        budget: bytes of RAM for everything, None for no limit.

    Example:
        >>> from carousel.offload.plan import ParamSpec, Share, make_plan
        >>> plan = make_plan([ParamSpec((4096,), "float32")], 1024, Share(0, 2))
        >>> make_pieces(plan, None)
        Pieces(numel=1024, world=2, item_bytes=4)
        >>> make_pieces(plan, None).total_bytes
        20480
    """
    chunks = [chunk for turn in plan.rounds for chunk in turn if chunk is not None]
    if plan.share.world == 1 or not chunks:
        return NO_PIECES
    item = max(4, *(ITEM_BYTES[chunk.dtype] for chunk in chunks))
    world = plan.share.world
    wished = MOST_ELEMENTS // world
    if budget is not None:
        wished = min(wished, budget // _SHARE // ((2 * world + 1) * item))
    longest = -(-max(chunk.numel for chunk in chunks) // CUT) * CUT
    return Pieces(min(longest, max(LEAST_ELEMENTS, wished // CUT * CUT)), world, item)
