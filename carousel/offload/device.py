"""What a link needs of a device: streams that work in order, events between them, pinned memory.

It is a seam: the rules of order are the link's, and can be broken or kept under any device whose
streams do their work later than they are told to.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from carousel.errors import WorkerError
from carousel.offload.ring import Bytes

__all__ = ["CudaDevice", "Device", "Event", "PinnedSlab", "Stream"]


class Event(Protocol):
    """A point in a stream's work; one that was never recorded has been reached."""

    def record(self, stream: Any) -> None:
        """Stand for the end of what the stream was told so far."""

    def synchronize(self) -> None:
        """Wait until it is reached."""


class Stream(Protocol):
    """Does what it is told in order, and later."""

    def wait_event(self, event: Any) -> None:
        """Do nothing that comes after this before the event is reached."""

    def synchronize(self) -> None:
        """Wait until all is done."""


class Device(Protocol):
    """Streams, events, copies and pinned memory.

    Attributes:
        device: of the parameters.
    """

    device: torch.device

    def stream(self) -> Stream:
        """A new stream."""
        ...

    def event(self) -> Event:
        """A new event."""
        ...

    def current(self) -> Stream:
        """The stream that this thread computes on."""
        ...

    def copy(self, into: Tensor, source: Tensor, stream: Stream) -> None:
        """Tell a stream to copy. Nobody else keeps the tensors until it has."""

    def pin(self, area: Bytes) -> None:
        """Keep memory where it is, so that copies from and to it need no help of the host.

        Raises:
            WorkerError: the driver refuses.
        """

    def unpin(self, area: Bytes) -> None:
        """Take `pin` back.

        Raises:
            WorkerError: the driver refuses.
        """


class CudaDevice:
    """CUDA's, by way of torch.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def stream(self) -> Stream:
        """See `Device.stream`."""
        made: Stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return made

    def event(self) -> Event:
        """See `Device.event`."""
        made: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return made

    def current(self) -> Stream:
        """See `Device.current`."""
        return torch.cuda.current_stream(self.device)

    def copy(self, into: Tensor, source: Tensor, stream: Any) -> None:
        """See `Device.copy`; between equal dtypes, or torch would cast through another tensor."""
        assert into.dtype == source.dtype
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)

    def pin(self, area: Bytes) -> None:
        """See `Device.pin`."""
        with torch.cuda.device(self.device):
            code = _runtime().cudaHostRegister(area.ctypes.data, area.nbytes, 0)
        self._require(code, f"the driver cannot pin {area.nbytes} bytes of RAM")

    def unpin(self, area: Bytes) -> None:
        """See `Device.unpin`."""
        with torch.cuda.device(self.device):
            code = _runtime().cudaHostUnregister(area.ctypes.data)
        self._require(code, f"the driver cannot give {area.nbytes} pinned bytes back")

    def _require(self, code: Any, problem: str) -> None:
        if int(code) != 0:
            self._forget_refusal()
            raise WorkerError(f"{problem}: CUDA error {int(code)}")

    def _forget_refusal(self) -> None:
        """The runtime keeps a refusal until it is asked; torch asks after every kernel.

        Without this the next kernel of the program would seem to have failed.
        """
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device=self.device)


class PinnedSlab:
    """Pinned memory of exactly the size that is asked for, in a mapping of its own.

    torch's allocator of pinned memory rounds up to a power of two, and keeps what is given back.
    The mapping is shared: after a fork, a loader's for one, a private page moves when it is written
    to, and the device would go on with the old one.

    Args:
        device: that copies from and to it.
        nbytes: above 0.

    Raises:
        WorkerError: the driver refuses; nothing is held.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self._area: Bytes | None = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        device.pin(self._area)

    def parts(self, nbytes: int) -> list[Tensor]:
        """All of it in equal parts, (nbytes,) uint8 each."""
        assert self._area is not None
        count = len(self._area) // nbytes
        return [
            torch.from_numpy(self._area[part * nbytes : (part + 1) * nbytes])
            for part in range(count)
        ]

    def close(self) -> None:
        """Give it back; nothing may be under way. Calling it again is fine."""
        area, self._area = self._area, None
        if area is not None:
            self._device.unpin(area)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
