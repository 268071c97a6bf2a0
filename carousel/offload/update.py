"""One step's arithmetic: which chunks it visits, and what happens to each."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from carousel.offload.engine import Visit
from carousel.offload.kernel import Operands, fused_update
from carousel.offload.link import Cargo, Link
from carousel.offload.plan import Chunk, Plan
from carousel.offload.record import PARAM
from carousel.offload.ring import Fields

__all__ = ["Active", "Update", "copy_params", "flatten"]


@dataclass(frozen=True, slots=True)
class Active:
    """A parameter that a step updates.

    Args:
        grad: its gradient, one-dimensional.
        step: Adam's step count, this one included; fp32, no dimensions.
        group: number of its group.
        fresh: it has no states yet: they are zero, whatever its record holds.
    """

    grad: Tensor
    step: Tensor
    group: int
    fresh: bool


class Update:
    """A step.

    Args:
        plan: of the chunks.
        params: all live parameters by number, one-dimensional.
        known: numbers of the parameters that have states from before.
        groups: hyper-parameters.
        scratch: (elements of a chunk,) fp32, for gradients of another precision.
        grad_scale: what gradients are divided by.
        targets: by number, one-dimensional: what gets the new values in place of the parameter.
        link: to where the parameters are.

    Attributes:
        active: what is updated, by number; all of a chunk is there when the chunk is visited.
        written: by number, one-dimensional: where the values are after the step.
    """

    def __init__(
        self,
        plan: Plan,
        params: Sequence[Tensor],
        known: set[int],
        *,
        groups: Sequence[Mapping[str, Any]],
        scratch: Tensor | None,
        grad_scale: Tensor | None,
        targets: Mapping[int, Tensor],
        link: Link,
    ) -> None:
        self.active: dict[int, Active] = {}
        self.written = [targets.get(number, param) for number, param in enumerate(params)]
        self._crossing = link.crossing(Cargo(params, targets, self.active))
        self._params, self._known = params, known
        self._groups, self._scratch, self._grad_scale = groups, scratch, grad_scale
        self._chunks = plan.chunks

    def visits(self, numbers: Container[int]) -> list[Visit]:
        """The visits of all chunks that have any of these parameters."""
        return [
            Visit(chunk.index, load=not self._blank(chunk))
            for chunk in self._chunks
            if any(s.param in numbers for s in chunk.segments)
        ]

    @contextmanager
    def crossing(self, chunks: Sequence[Chunk]) -> Iterator[None]:
        """The traffic to and from the parameters while these chunks are updated, in this order."""
        try:
            self._crossing.expect(chunks)
            yield
            self._crossing.finish()
        except BaseException:
            self._crossing.abandon()
            raise

    def apply(self, chunk: Chunk, fields: Fields) -> None:
        """Update the chunk's parameters, and its fields in place."""
        halves = self._scratch is not None and fields["m"].dtype != self._params_dtype(chunk)
        self._begin(chunk, fields, masters=halves)
        self._crossing.land(chunk)
        calls: dict[int, Operands] = {}
        for segment in chunk.segments:
            active = self.active.get(segment.param)
            if active is None:
                continue
            here = slice(segment.offset, segment.offset + segment.length)
            operands = calls.setdefault(active.group, Operands())
            grad = self._crossing.grad(segment)
            if halves:
                assert self._scratch is not None
                grad = self._scratch[here].copy_(grad)
                operands.params.append(fields[PARAM][here])
            else:
                operands.params.append(self._crossing.values(segment))
                grad = grad.to(operands.params[-1].dtype)
            operands.grads.append(grad)
            operands.m.append(fields["m"][here])
            operands.v.append(fields["v"][here])
            if chunk.amsgrad:
                operands.vmax.append(fields["vmax"][here])
            operands.steps.append(active.step)
        for number, operands in calls.items():
            fused_update(operands, self._groups[number], self._grad_scale)
        if halves:
            self._publish(chunk, fields)
        elif PARAM in fields:
            self._record(chunk, fields)
        self._crossing.leave(chunk)

    def _begin(self, chunk: Chunk, fields: Fields, *, masters: bool) -> None:
        """States that begin with this step are zero, and masters are their parameters' values."""
        blank = self._blank(chunk)
        for segment in chunk.segments:
            active = self.active.get(segment.param)
            if not blank and not (active is not None and active.fresh):
                continue
            here = slice(segment.offset, segment.offset + segment.length)
            for name, value in fields.items():
                if name != PARAM:
                    value[here].zero_()
            if masters:
                there = slice(segment.start, segment.start + segment.length)
                fields[PARAM][here].copy_(self._params[segment.param][there])

    def _publish(self, chunk: Chunk, fields: Fields) -> None:
        """Give the parameters, or their targets, their masters' values, rounded."""
        for segment in chunk.segments:
            if segment.param in self.active:
                here = slice(segment.offset, segment.offset + segment.length)
                self._crossing.place(segment).copy_(fields[PARAM][here])

    def _record(self, chunk: Chunk, fields: Fields) -> None:
        """Copy the chunk's new values into the field that it is recovered from."""
        for segment in chunk.segments:
            here = slice(segment.offset, segment.offset + segment.length)
            fields[PARAM][here].copy_(self._crossing.place(segment))

    def _blank(self, chunk: Chunk) -> bool:
        """Whether no record of it is worth reading."""
        return not any(segment.param in self._known for segment in chunk.segments)

    def _params_dtype(self, chunk: Chunk) -> torch.dtype:
        return self._params[chunk.segments[0].param].dtype


def copy_params(params: Sequence[Tensor], chunk: Chunk, fields: Fields) -> None:
    """Copy the parameters of a chunk into the field ``param`` of its record."""
    for segment in chunk.segments:
        there = slice(segment.start, segment.start + segment.length)
        here = slice(segment.offset, segment.offset + segment.length)
        fields[PARAM][here].copy_(params[segment.param][there])


def flatten(tensor: Tensor) -> Tensor:
    """All elements of a tensor in one dimension; a view where it is contiguous."""
    return tensor.detach().reshape(-1)
