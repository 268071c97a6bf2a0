"""A link that is watched: bytes, the time they take, what the host waits for, what is pinned."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from carousel.offload import optim
from carousel.offload.cuda import CudaCrossing, CudaLink
from carousel.offload.device import CudaDevice, Device, Event, Stream
from carousel.offload.link import Cargo
from carousel.offload.plan import Chunk
from carousel.offload.ring import Bytes

__all__ = ["Watch", "watching"]


class Watch:
    """What happened on a link so far.

    Attributes:
        nbytes: copied, by way: ``down`` or ``up``.
        streams: made.
        pinned: bytes.
        waited: seconds for which the host waited for gradients.
        chunks: that were updated.
    """

    def __init__(self) -> None:
        self.links: list[_Link] = []
        self.clear()
        self.streams = self.pinned = 0

    def clear(self) -> None:
        """Forget what was copied and waited for."""
        self.nbytes: Counter[str] = Counter()
        self.waited = 0.0
        self.chunks = 0
        self.spans: list[tuple[str, Any, Any]] = []
        self.last_told = 0.0

    def seconds(self, way: str) -> float:
        """That copies of one way took on the device; all of them are done."""
        return sum(_between(begin, end) for found, begin, end in self.spans if found == way)

    def until_up(self) -> float:
        """Wait until the last values are up: seconds since the stream was told to bring them."""
        for link in self.links:
            link.up.synchronize()
        return time.perf_counter() - self.last_told


@contextmanager
def watching() -> Iterator[Watch]:
    """Optimizers that are made in the block have a watched link.

    On the CPU it is the link of a GPU, too, over a device that does everything at once.
    """
    watch, before = Watch(), optim.link_for

    def link_for(device: torch.device) -> _Link:
        real = CudaDevice(device) if device.type == "cuda" else _CpuDevice()
        watch.links.append(_Link(_Watched(real, watch), watch))
        return watch.links[-1]

    optim.link_for = link_for  # type: ignore[assignment]
    try:
        yield watch
    finally:
        optim.link_for = before


class _Link(CudaLink):
    """Its crossings say when the host waited."""

    def __init__(self, device: Device, watch: Watch) -> None:
        super().__init__(device)
        self._watch = watch

    def crossing(self, cargo: Cargo) -> Any:
        return _Crossing(super().crossing(cargo), self._watch)


class _Crossing:
    def __init__(self, real: CudaCrossing, watch: Watch) -> None:
        self._real, self._watch = real, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def land(self, chunk: Chunk) -> None:
        start = time.perf_counter()
        self._real.land(chunk)
        self._watch.waited += time.perf_counter() - start
        self._watch.chunks += 1

    def finish(self) -> None:
        self._watch.last_told = time.perf_counter()
        self._real.finish()


class _Watched:
    """Another device, and a note of all that it is told."""

    def __init__(self, real: Device, watch: Watch) -> None:
        self._real, self._watch, self.device = real, watch, real.device
        self._ways: list[Stream] = []

    def stream(self) -> Stream:
        self._watch.streams += 1
        self._ways.append(self._real.stream())
        return self._ways[-1]

    def event(self) -> Event:
        return self._real.event()

    def current(self) -> Stream:
        return self._real.current()

    def copy(self, into: Tensor, source: Tensor, stream: Stream) -> None:
        way = ("down", "up")[[made is stream for made in self._ways].index(True)]
        begin = _stamp(self.device, stream)
        self._real.copy(into, source, stream)
        self._watch.spans.append((way, begin, _stamp(self.device, stream)))
        self._watch.nbytes[way] += into.nbytes

    def pin(self, area: Bytes) -> None:
        self._real.pin(area)
        self._watch.pinned += area.nbytes

    def unpin(self, area: Bytes) -> None:
        self._real.unpin(area)
        self._watch.pinned -= area.nbytes


class _CpuDevice:
    """Does what it is told before it returns, so there is nothing to wait for."""

    device = torch.device("cpu")

    def stream(self) -> Stream:
        return _Done()

    def event(self) -> Event:
        return _Done()

    def current(self) -> Stream:
        return _Done()

    def copy(self, into: Tensor, source: Tensor, stream: Stream) -> None:  # noqa: ARG002
        into.copy_(source)

    def pin(self, area: Bytes) -> None:
        pass

    def unpin(self, area: Bytes) -> None:
        pass


class _Done:
    """A stream, or an event, that has nothing left to do."""

    def wait_event(self, event: Event) -> None:
        pass

    def record(self, stream: Stream) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _stamp(device: torch.device, stream: Any) -> Any:
    """A point in a stream's time."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _between(begin: Any, end: Any) -> float:
    return end - begin if isinstance(begin, float) else float(begin.elapsed_time(end)) / 1000
