"""Gradients from a GPU, and new values back to it, behind and ahead of the kernel.

After ZeRO-Offload (Ren et al., USENIX ATC 2021, sections 3 and 4.1): gradients come down and values
go up in the parameters' own 16 bits, casts are done on the host, and both ways are hidden behind
the arithmetic. Two streams live as long as the link does, one a way, for a new stream each step
would make torch's allocator keep a pool for each. What makes it sound:

1. Nothing comes down before what the caller's stream was told until then, so gradients are whole;
   and only what has come down goes up, so no kernel still reads the old values.
2. A bucket is read when its event of arrival has fired.
3. A bucket is filled again after its event of departure; the stream waits for it, not the host.
4. Tensors of the device are held until the event after their copy has fired.
5. At the end of a step the caller's stream waits for the last departure, so the next forward pass
   finds new values.

Gradients stay where they are until the step begins, so that whatever a caller does to them before
(accumulate, clip, unscale) is in the step; the traffic does not overlap with the backward pass.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from carousel.offload.buckets import NO_BUCKETS, Berth, Buckets, Landing, berth_of
from carousel.offload.device import Device, Event, PinnedSlab, Stream
from carousel.offload.link import Cargo
from carousel.offload.plan import Chunk, Segment

__all__ = ["CudaLink"]


class CudaLink:
    """The link to parameters on one CUDA device; see `Link`.

    Args:
        device: streams, events and pinned memory.

    Attributes:
        down, up: streams from and to the device.
    """

    landing: Landing = "some"

    def __init__(self, device: Device) -> None:
        self._hardware, self.device = device, device.device
        self.down, self.up = device.stream(), device.stream()
        self._ready, self._last = device.event(), device.event()
        self._buckets = NO_BUCKETS
        self._slots: list[_Slot] = []
        self._masters = True
        self._release = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, self._release.close)
        self._finalizer.atexit = False  # the driver may be gone by then, and the memory goes anyway

    @property
    def pinned_bytes(self) -> int:
        """RAM that is pinned."""
        return self._buckets.total_bytes if self._slots else 0

    def fit(self, buckets: Buckets, *, masters: bool) -> None:
        """See `Link.fit`.

        Raises:
            WorkerError: the driver cannot pin as much; nothing is held then.
        """
        self._masters = masters
        if buckets == self._buckets:
            return
        self.close()
        if buckets.count:
            self._slots = self._pin(buckets)
        self._buckets = buckets

    def crossing(self, cargo: Cargo) -> CudaCrossing:
        """See `Link.crossing`."""
        return CudaCrossing(
            cargo,
            _Lines(self._hardware, self.down, self.up, self._ready, self._last),
            self._slots,
            masters=self._masters,
        )

    def close(self) -> None:
        """See `Link.close`.

        Raises:
            RuntimeError: what the device met; the memory is given back nevertheless.
        """
        try:
            self._release.close()
        finally:
            self._buckets, self._slots = NO_BUCKETS, []

    def _pin(self, buckets: Buckets) -> list[_Slot]:
        slab = PinnedSlab(self._hardware, buckets.total_bytes)
        self._release.callback(slab.close)
        self._release.callback(self.down.synchronize)
        self._release.callback(self.up.synchronize)
        return [
            _Slot(area, self._hardware.event(), self._hardware.event())
            for area in slab.parts(buckets.nbytes)
        ]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Streams of a link, and the events between them and the caller's."""

    device: Device
    down: Stream
    up: Stream
    ready: Event
    last: Event

    def order(self) -> None:
        """What comes down from now on comes after what the caller's stream was told so far."""
        self.ready.record(self.device.current())
        self.down.wait_event(self.ready)


@dataclass(slots=True, eq=False)
class _Slot:
    """A bucket's memory, and what is known of it.

    Args:
        area: (bytes of a bucket,) uint8, pinned.
        arrived: fires when the bucket is on the host.
        left: fires when its values are on the device.
        coming, going: tensors of the device that are held until then.
        chunks: in it that did not leave yet.
    """

    area: Tensor
    arrived: Event
    left: Event
    coming: list[Tensor] = field(default_factory=list)
    going: list[Tensor] = field(default_factory=list)
    chunks: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Landed:
    """A chunk in a slot: its gradients, and the place of its values."""

    slot: _Slot
    berth: Berth
    grads: Tensor
    values: Tensor


class CudaCrossing:
    """See `Crossing`.

    Args:
        cargo: of the step.
        lines: streams and events.
        slots: of the link, none of them in use but for departures.
        masters: whether 16-bit parameters have fp32 values on the host.
    """

    def __init__(
        self, cargo: Cargo, lines: _Lines, slots: Sequence[_Slot], *, masters: bool
    ) -> None:
        self._cargo, self._lines, self._masters = cargo, lines, masters
        self._free = deque(slots)
        self._slots = slots
        self._queue: deque[Chunk] = deque()
        self._landed: dict[int, _Landed] = {}
        self._here: _Landed

    def expect(self, chunks: Sequence[Chunk]) -> None:
        """See `Crossing.expect`."""
        self._lines.order()
        self._queue.extend(chunks)
        self._fill()

    def land(self, chunk: Chunk) -> None:
        """See `Crossing.land`; a chunk that nobody expected is brought now."""
        if chunk.index not in self._landed:
            self.expect([chunk])
        self._here = self._landed[chunk.index]
        slot = self._here.slot
        if slot.coming:
            slot.arrived.synchronize()
            slot.coming.clear()

    def grad(self, segment: Segment) -> Tensor:
        """See `Crossing.grad`."""
        return self._here.grads[segment.offset : segment.offset + segment.length]

    def place(self, segment: Segment) -> Tensor:
        """See `Crossing.place`; with masters it is the place of the segment's gradient."""
        return self._here.values[segment.offset : segment.offset + segment.length]

    def values(self, segment: Segment) -> Tensor:
        """See `Crossing.values`; they came along."""
        return self.place(segment)

    def leave(self, chunk: Chunk) -> None:
        """See `Crossing.leave`."""
        landed = self._landed.pop(chunk.index)
        slot, lines = landed.slot, self._lines
        for segment in chunk.segments:
            if segment.param in self._cargo.active:
                target = self._cargo.target(segment)
                slot.going.append(target)
                lines.device.copy(target, _part(landed.values, segment), lines.up)
        slot.chunks.discard(chunk.index)
        if not slot.chunks:
            slot.left.record(lines.up)
            self._free.append(slot)
            self._fill()

    def finish(self) -> None:
        """See `Crossing.finish`."""
        self._lines.last.record(self._lines.up)
        self._lines.device.current().wait_event(self._lines.last)

    def abandon(self) -> None:
        """See `Crossing.abandon`."""
        for stream in (self._lines.down, self._lines.up):
            with contextlib.suppress(RuntimeError):  # the device's own error is what ended the step
                stream.synchronize()
        for slot in self._slots:
            slot.coming.clear()
            slot.going.clear()
            slot.chunks.clear()
        self._queue.clear()
        self._landed.clear()

    def _fill(self) -> None:
        """Begin to fill buckets while there are some."""
        while self._queue and self._free:
            self._load(self._free.popleft())

    def _load(self, slot: _Slot) -> None:
        """Fill a bucket with the next chunks, as far as they fit."""
        self._lines.down.wait_event(slot.left)
        slot.coming.extend(slot.going)  # the arrival comes after that departure
        slot.going.clear()
        used = 0
        while self._queue:
            berth = berth_of(self._queue[0], masters=self._masters)
            if used + berth.nbytes > len(slot.area):
                break
            chunk = self._queue.popleft()
            dtype: torch.dtype = getattr(torch, berth.dtype)
            area = slot.area[used : used + berth.nbytes].view(dtype)
            landed = _Landed(slot, berth, area, area[berth.values // dtype.itemsize :])
            self._bring(chunk, landed)
            slot.chunks.add(chunk.index)
            self._landed[chunk.index] = landed
            used += berth.nbytes
        slot.arrived.record(self._lines.down)

    def _bring(self, chunk: Chunk, landed: _Landed) -> None:
        """Tell the stream to copy a chunk's gradients, and its values where the kernel wants them.

        Values come also where there is no gradient: a record that is recovered from has all.
        """
        for segment in chunk.segments:
            active = self._cargo.active.get(segment.param)
            if active is not None:
                self._copy_down(landed, landed.grads, active.grad, segment)
            if not landed.berth.shared:
                self._copy_down(landed, landed.values, self._cargo.params[segment.param], segment)

    def _copy_down(self, landed: _Landed, into: Tensor, source: Tensor, segment: Segment) -> None:
        landed.slot.coming.append(source)
        part = source[segment.start : segment.start + segment.length]
        self._lines.device.copy(_part(into, segment), part, self._lines.down)


def _part(area: Tensor, segment: Segment) -> Tensor:
    return area[segment.offset : segment.offset + segment.length]
