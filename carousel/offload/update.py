"""One step's arithmetic: which chunks it visits, and what happens to each."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from carousel.offload.engine import Visit
from carousel.offload.kernel import Operands, fused_update
from carousel.offload.link import Cargo, Link, part
from carousel.offload.plan import Chunk, Plan
from carousel.offload.record import PARAM
from carousel.offload.ring import Fields

__all__ = ["Active", "Lent", "Update", "copy_params", "flatten"]

Lent: TypeAlias = tuple[Chunk, Fields]
"""A chunk, and its fields for as long as it is lent."""

_Kind: TypeAlias = tuple[int, torch.dtype]
"""What slices have in common that one call updates: their group, and their dtype."""


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
        self._lands = link.landing != "nowhere"

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

    def apply(self, lent: Sequence[Lent]) -> None:
        """Update the chunks' parameters, and their fields in place.

        As few calls of the kernel as can be: what a call works on pushes all else out of the
        processor's caches, so that whatever is done between two calls is slow.
        """
        calls: dict[_Kind, Operands] = {}
        gathered: list[Lent] = []
        for chunk, fields in lent:
            self._begin(chunk, fields)
            self._crossing.land(chunk)
            again = self._gather(chunk, fields, calls)
            gathered.append((chunk, fields))
            if not again:
                self._run(gathered, calls)
        self._run(gathered, calls)

    def _gather(self, chunk: Chunk, fields: Fields, calls: dict[_Kind, Operands]) -> bool:
        """Add a chunk to what the kernel is called with.

        Returns:
            Whether another chunk may be added: there is room for one chunk's copies only.
        """
        halves, copied = self._has_halves(chunk, fields), self._lands
        for segment in chunk.segments:
            active = self.active.get(segment.param)
            if active is None:
                continue
            grad = self._crossing.grad(segment)
            if halves:
                assert self._scratch is not None
                values = part(fields[PARAM], segment.offset, segment.length)
                grad = part(self._scratch, segment.offset, segment.length).copy_(grad)
            else:
                values = self._crossing.values(segment)
            if grad.dtype != values.dtype:
                grad, copied = grad.to(values.dtype), True
            kind = active.group, values.dtype
            operands = calls.get(kind)
            if operands is None:
                operands = calls[kind] = Operands()
            operands.params.append(values)
            operands.grads.append(grad)
            operands.m.append(part(fields["m"], segment.offset, segment.length))
            operands.v.append(part(fields["v"], segment.offset, segment.length))
            if chunk.amsgrad:
                operands.vmax.append(part(fields["vmax"], segment.offset, segment.length))
            operands.steps.append(active.step)
        return not (halves or copied)

    def _run(self, gathered: list[Lent], calls: dict[_Kind, Operands]) -> None:
        """Do what was gathered, and forget it."""
        for (group, _), operands in calls.items():
            fused_update(operands, self._groups[group], self._grad_scale)
        for chunk, fields in gathered:
            if self._has_halves(chunk, fields):
                self._publish(chunk, fields)
            elif PARAM in fields:
                self._record(chunk, fields)
            self._crossing.leave(chunk)
        calls.clear()
        gathered.clear()

    def _has_halves(self, chunk: Chunk, fields: Fields) -> bool:
        """Whether its parameters have masters, so that they share the scratch."""
        return self._scratch is not None and fields["m"].dtype != self._params_dtype(chunk)

    def _begin(self, chunk: Chunk, fields: Fields) -> None:
        """States that begin with this step are zero, and masters are their parameters' values."""
        blank = self._blank(chunk)
        for segment in chunk.segments:
            active = self.active.get(segment.param)
            if not blank and not (active is not None and active.fresh):
                continue
            for name, value in fields.items():
                if name != PARAM:
                    part(value, segment.offset, segment.length).zero_()
            if self._has_halves(chunk, fields):
                values = part(self._params[segment.param], segment.start, segment.length)
                part(fields[PARAM], segment.offset, segment.length).copy_(values)

    def _publish(self, chunk: Chunk, fields: Fields) -> None:
        """Give the parameters, or their targets, their masters' values, rounded."""
        for segment in chunk.segments:
            if segment.param in self.active:
                values = part(fields[PARAM], segment.offset, segment.length)
                self._crossing.place(segment).copy_(values)

    def _record(self, chunk: Chunk, fields: Fields) -> None:
        """Copy the chunk's new values into the field that it is recovered from."""
        for segment in chunk.segments:
            values = self._crossing.place(segment)
            part(fields[PARAM], segment.offset, segment.length).copy_(values)

    def _blank(self, chunk: Chunk) -> bool:
        """Whether no record of it is worth reading."""
        return all(segment.param not in self._known for segment in chunk.segments)

    def _params_dtype(self, chunk: Chunk) -> torch.dtype:
        return self._params[chunk.segments[0].param].dtype


def copy_params(params: Sequence[Tensor], chunk: Chunk, fields: Fields) -> None:
    """Copy the parameters of a chunk into the field ``param`` of its record."""
    for segment in chunk.segments:
        values = part(params[segment.param], segment.start, segment.length)
        part(fields[PARAM], segment.offset, segment.length).copy_(values)


def flatten(tensor: Tensor) -> Tensor:
    """All elements of a tensor in one dimension; a view where it is contiguous."""
    return tensor.detach().reshape(-1)
