"""What fits into a budget of RAM: the size of chunks, the ring, and how many chunks stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from carousel.errors import BadInputError
from carousel.offload.aside_size import aside_bytes
from carousel.offload.buckets import NO_BUCKETS, Buckets, Landing, make_buckets
from carousel.offload.pieces import NO_PIECES, Pieces, make_pieces
from carousel.offload.plan import WHOLE, ParamSpec, Plan, Share, make_plan
from carousel.offload.record import RecordLayout, layout_of

__all__ = ["LARGEST_CHUNK", "Room", "Wishes", "make_room", "size_chunks"]

LARGEST_CHUNK = 1 << 20
SMALLEST_CHUNK = 1 << 12
_FULL_RING = 6
_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller decides about RAM.

    Args:
        budget: bytes of RAM, None for all in RAM.
        chunk_numel: elements of a chunk, None to choose.
        ring: buffers of the ring, None to choose.
        workers: threads that read and write.
        masters: keep fp32 values of 16-bit parameters.
        recoverable: whether a commit brings parameters back.
        stored: whether there is a file at all.
        landing: how much of the gradients is under way from a device.
        delayed: keep a copy of gradients and parameters for an update that is delayed.
        share: the part of the chunks that this process has.
    """

    budget: int | None
    chunk_numel: int | None
    ring: int | None
    workers: int
    masters: bool
    recoverable: bool
    stored: bool
    landing: Landing = "nowhere"
    delayed: bool = False
    share: Share = WHOLE

    @property
    def least_ring(self) -> int:
        """Buffers below which threads would wait for each other."""
        return self.workers + 1


@dataclass(frozen=True, slots=True)
class Room:
    """How RAM is used, in bytes where it says so.

    Args:
        layouts: of the chunks.
        pinned: how many chunks, from the first, stay in RAM.
        ring: buffers of the ring, 0 without one.
        buffer_bytes: of one of them.
        pinned_bytes: of the states that stay.
        scratch_bytes: of gradients cast to the states' precision.
        buckets: of gradients and values between a device and the host.
        copied_bytes: of gradients and parameters of a delayed update.
        pieces: of gradients and values between ranks.
    """

    layouts: tuple[RecordLayout, ...]
    pinned: int
    ring: int
    buffer_bytes: int
    pinned_bytes: int
    scratch_bytes: int
    buckets: Buckets = NO_BUCKETS
    copied_bytes: int = 0
    pieces: Pieces = NO_PIECES

    @property
    def used_bytes(self) -> int:
        """RAM that is taken in all."""
        moving = self.scratch_bytes + self.buckets.total_bytes + self.aside_bytes
        return self.pinned_bytes + self.ring * self.buffer_bytes + moving

    @property
    def aside_bytes(self) -> int:
        """RAM that smaller chunks do not make less of."""
        return self.copied_bytes + self.pieces.total_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of all states."""
        return sum(layout.resident_bytes for layout in self.layouts)


def size_chunks(specs: Sequence[ParamSpec], wishes: Wishes) -> Plan:
    """The plan with the largest chunks of which a full ring takes at most half the budget.

    Raises:
        BadInputError: `chunk_numel` cannot be used.
    """
    if wishes.chunk_numel is not None:
        return make_plan(specs, wishes.chunk_numel, wishes.share)
    numel = _largest_chunk(specs, wishes.share)
    most = Share(0, wishes.share.world)  # nobody has more chunks, and all decide by the same
    plan = make_plan(specs, numel, most)
    while wishes.budget is not None and numel > SMALLEST_CHUNK:
        room = make_room(plan, wishes, strict=False)
        if room.used_bytes <= wishes.budget and (
            room.pinned == len(plan.chunks)
            or _FULL_RING * room.buffer_bytes <= (wishes.budget - room.aside_bytes) // 2
        ):
            break
        numel //= 2
        plan = make_plan(specs, numel, most)
    return plan if wishes.share == most else make_plan(specs, numel, wishes.share)


def make_room(plan: Plan, wishes: Wishes, *, strict: bool = True) -> Room:
    """Share the budget out: the ring first, then as many chunks as the rest holds.

    Args:
        plan: of the chunks.
        wishes: of the caller.
        strict: refuse what cannot work instead of exceeding the budget.

    Raises:
        BadInputError: the budget is below the least; the error has a table of what is needed.
    """
    layouts = _layouts(plan, wishes)
    bare = _bare_room(plan, wishes, layouts)
    if wishes.budget is None:
        ring = (wishes.ring or wishes.least_ring) if wishes.stored and layouts else 0
        return _room(bare, len(layouts), ring)
    if not wishes.stored or not layouts:
        room = _room(bare, len(layouts), 0)
        if strict and room.used_bytes > wishes.budget:
            raise BadInputError(
                f"ram_budget is {wishes.budget} bytes and the states take {room.used_bytes}",
                fix="give storage=PATH for what does not fit, or a larger budget",
            )
        return room
    for ring in range(wishes.ring or _FULL_RING, wishes.least_ring - 1, -1):
        left = wishes.budget - bare.used_bytes - ring * bare.buffer_bytes
        if left >= 0 or (wishes.ring is not None) or ring == wishes.least_ring:
            break
    room = _room(bare, _prefix(layouts, left), ring)
    if strict and room.used_bytes > wishes.budget:
        raise BadInputError(
            f"ram_budget is {wishes.budget} bytes, below the least that works\n{_table(room)}",
            fix="give a larger ram_budget, or smaller chunks with chunk_numel",
        )
    return room


def _bare_room(plan: Plan, wishes: Wishes, layouts: tuple[RecordLayout, ...]) -> Room:
    """What is taken before there is a ring, or a chunk that stays."""
    return Room(
        layouts,
        pinned=0,
        ring=0,
        buffer_bytes=max((layout.nbytes for layout in layouts), default=0),
        pinned_bytes=0,
        scratch_bytes=max((_scratch(plan, wishes)), default=0),
        buckets=make_buckets(
            plan.chunks, wishes.landing, masters=wishes.masters, budget=wishes.budget
        ),
        copied_bytes=_copied(plan, wishes),
        pieces=make_pieces(plan, wishes.budget),
    )


def _room(bare: Room, pinned: int, ring: int) -> Room:
    kept = sum(layout.resident_bytes for layout in bare.layouts[:pinned])
    return replace(bare, pinned=pinned, ring=ring, pinned_bytes=kept)


def _prefix(layouts: Sequence[RecordLayout], budget: int) -> int:
    for number, layout in enumerate(layouts):
        budget -= layout.resident_bytes
        if budget < 0:
            return number
    return len(layouts)


def _layouts(plan: Plan, wishes: Wishes) -> tuple[RecordLayout, ...]:
    return tuple(
        layout_of(chunk, masters=wishes.masters, recoverable=wishes.recoverable)
        for chunk in plan.chunks
    )


def _scratch(plan: Plan, wishes: Wishes) -> list[int]:
    """Bytes of a chunk's gradients, where they are not of the states' precision."""
    layouts = _layouts(plan, wishes)
    pairs = zip(plan.chunks, layouts, strict=True)
    return [layout.numel * 4 for chunk, layout in pairs if layout.dtype != chunk.dtype]


def _copied(plan: Plan, wishes: Wishes) -> int:
    """Bytes of all gradients and new values, which a delayed update keeps."""
    return aside_bytes(plan.specs) if wishes.delayed else 0


def _largest_chunk(specs: Sequence[ParamSpec], share: Share) -> int:
    """Several chunks for each process, so that all have about as much to do."""
    numel = LARGEST_CHUNK
    total = sum(spec.numel for spec in specs if spec.stored)
    while share.world > 1 and numel > SMALLEST_CHUNK and total < _CHUNKS * share.world * numel:
        numel //= 2
    return numel


def _table(room: Room) -> str:
    rows = [
        ("ring", f"{room.ring} buffers of {room.buffer_bytes}", room.ring * room.buffer_bytes),
        ("gradients cast to fp32", "", room.scratch_bytes),
        ("to and from the device", f"{room.buckets.count} buckets", room.buckets.total_bytes),
        ("a delayed update", "gradients and new values", room.copied_bytes),
        ("to and from other ranks", "", room.pieces.total_bytes),
        ("states that stay in RAM", f"{room.pinned} chunks", room.pinned_bytes),
        ("needed", "", room.used_bytes),
    ]
    return "\n".join(f"  {name:<24} {what:<28} {size:>12} bytes" for name, what, size in rows)
