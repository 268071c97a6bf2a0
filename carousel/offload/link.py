"""How gradients come to the host, and new values go back to the parameters.

A step asks for a chunk's gradients when the chunk's states are there, and says when the chunk is
done. Between a device and the host that is traffic, which a link does ahead and behind; for
parameters on the host there is nothing to move, and the kernel works on them in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from carousel.offload.buckets import Buckets, Landing
from carousel.offload.plan import Chunk, Segment

__all__ = ["Cargo", "Crossing", "HostLink", "Link", "WithGrad", "link_for", "part"]


class WithGrad(Protocol):
    """A parameter that a step updates."""

    @property
    def grad(self) -> Tensor:
        """Its gradient, one-dimensional."""
        ...


@dataclass(frozen=True, slots=True)
class Cargo:
    """What a step moves.

    Args:
        params: by number, one-dimensional.
        targets: by number, one-dimensional: what gets new values in place of the parameter.
        active: what is updated, by number; all of a chunk is there when the chunk is asked for.
    """

    params: Sequence[Tensor]
    targets: Mapping[int, Tensor]
    active: Mapping[int, WithGrad]

    def target(self, segment: Segment) -> Tensor:
        """What gets the segment's new values."""
        whole = self.targets.get(segment.param, self.params[segment.param])
        return part(whole, segment.start, segment.length)


class Crossing(Protocol):
    """The traffic of one step, or none; used by one thread."""

    def expect(self, chunks: Sequence[Chunk]) -> None:
        """Begin to bring what these chunks need, in this order, as far as there is room."""

    def land(self, chunk: Chunk) -> None:
        """Wait until what the chunk needs is on the host."""

    def grad(self, segment: Segment) -> Tensor:
        """The segment's gradient, (length,), of the chunk that landed last."""
        ...

    def place(self, segment: Segment) -> Tensor:
        """Where new values are to be written, (length,); it holds anything before."""
        ...

    def values(self, segment: Segment) -> Tensor:
        """The same place, with the parameter's values in it, for chunks without masters."""
        ...

    def leave(self, chunk: Chunk) -> None:
        """Begin to bring the chunk's new values to the parameters that are updated."""

    def finish(self) -> None:
        """Whatever the device is told to do from now on comes after the new values."""

    def abandon(self) -> None:
        """Wait for what is under way, and forget the rest; for errors, so it raises none."""


class Link(Protocol):
    """Between where the parameters live and the host.

    Attributes:
        device: of the parameters.
        landing: how much of the gradients is on the host at a time.
    """

    device: torch.device
    landing: Landing

    def fit(self, buckets: Buckets, *, masters: bool) -> None:
        """Take as much RAM as this, in place of what was taken before.

        Raises:
            CarouselError: there is not as much.
        """

    def crossing(self, cargo: Cargo) -> Crossing:
        """Of a step; the one before is finished or abandoned."""
        ...

    def close(self) -> None:
        """Wait for what is under way and give the RAM back; calling it again is fine."""


class HostLink:
    """Parameters on the host: nothing to move, nothing to hold.

    Example:
        >>> cargo = Cargo([torch.ones(2)], {}, {})
        >>> HostLink().crossing(cargo).values(Segment(0, 0, 2, 0))
        tensor([1., 1.])
    """

    landing: Landing = "nowhere"

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def fit(self, buckets: Buckets, *, masters: bool) -> None:
        """See `Link.fit`."""

    def crossing(self, cargo: Cargo) -> HostCrossing:
        """See `Link.crossing`."""
        return HostCrossing(cargo)

    def close(self) -> None:
        """See `Link.close`."""


class HostCrossing:
    """See `Crossing`; gradients and parameters are used where they are.

    Args:
        cargo: of the step.
    """

    def __init__(self, cargo: Cargo) -> None:
        self._cargo = cargo
        self._params, self._active = cargo.params, cargo.active

    def expect(self, chunks: Sequence[Chunk]) -> None:
        """See `Crossing.expect`."""

    def land(self, chunk: Chunk) -> None:
        """See `Crossing.land`."""

    def grad(self, segment: Segment) -> Tensor:
        """See `Crossing.grad`."""
        return part(self._active[segment.param].grad, segment.start, segment.length)

    def place(self, segment: Segment) -> Tensor:
        """See `Crossing.place`."""
        return self._cargo.target(segment)

    def values(self, segment: Segment) -> Tensor:
        """See `Crossing.values`."""
        values = self._cargo.target(segment)
        if segment.param in self._cargo.targets:
            values.copy_(part(self._params[segment.param], segment.start, segment.length))
        return values

    def leave(self, chunk: Chunk) -> None:
        """See `Crossing.leave`."""

    def finish(self) -> None:
        """See `Crossing.finish`."""

    def abandon(self) -> None:
        """See `Crossing.abandon`."""


def link_for(device: torch.device) -> Link:
    """The link to parameters on a device.

    Args:
        device: ``cpu``, or a CUDA device.

    Example:
        >>> link_for(torch.device("cpu")).landing
        'nowhere'
    """
    if device.type == "cpu":
        return HostLink()
    from carousel.offload.cuda import CudaLink
    from carousel.offload.device import CudaDevice

    return CudaLink(CudaDevice(device))


def part(whole: Tensor, start: int, length: int) -> Tensor:
    """Elements ``start .. start + length`` of a tensor (n,); the tensor itself if they are all.

    Example:
        >>> part(torch.arange(4), 1, 2)
        tensor([1, 2])
    """
    if length == whole.numel():
        return whole
    return whole[start : start + length]
