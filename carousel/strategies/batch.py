"""Replayed rows on their way into a mini-batch: transforms a batch at a time, then appended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, TypeAlias

import torch
from PIL.Image import fromarray
from torch import Tensor

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.strategies.raw import Kind, RawSource, as_tensor, evaluation_transforms
from carousel.strategies.tree import Transform

__all__ = ["BatchTransform", "PerSample", "append_labels", "append_samples", "batch_transform"]
__all__ += ["evaluation_transform", "joined"]

BatchTransform: TypeAlias = Callable[[Tensor], Tensor]
"""From raw samples (n, *shape) to model input (n, *shape)."""

_WARN_AFTER_ROWS = 2048


def batch_transform(source: RawSource, given: BatchTransform | None) -> BatchTransform | None:
    """How replayed rows become model input: None when they already are.

    Args:
        source: of the experience at hand; its transforms are the experience's.
        given: the user's own, which then replaces the experience's.

    Returns:
        `given`, or the experience's transforms. Those with a true attribute ``batched`` are
        called once a batch; any other is called once a sample, see `PerSample`.
    """
    if given is not None or not source.transforms:
        return given
    if all(getattr(transform, "batched", False) for transform in source.transforms):
        return _Chain(source.transforms)
    return PerSample(source.transforms, source.kind)


def evaluation_transform(
    dataset: Any, source: RawSource, given: BatchTransform | None
) -> BatchTransform | None:
    """How raw samples become model input in evaluation, without augmentation.

    Args:
        dataset: of the experience; one with transforms for training only is seen through these.
        source: its raw samples.
        given: see `batch_transform`.
    """
    if plain := evaluation_transforms(dataset):
        source = replace(source, transforms=plain)
    return batch_transform(source, given)


def append_samples(mbatch: list[Tensor], x: Tensor) -> None:
    """Append (n, *shape) model input to the samples of a mini-batch, in place; it may be empty.

    Raises:
        SchemaMismatchError: they do not look like the samples of the stream.
    """
    if not mbatch:
        mbatch.append(x.clone())  # x may be a buffer of the memory, and the batch is the user's
        return
    stream = mbatch[0]
    if x.dtype == stream.dtype:
        try:
            mbatch[0] = torch.cat((stream, x))
        except RuntimeError:
            if x.shape[1:] == stream.shape[1:]:
                raise
        else:
            return
    raise SchemaMismatchError(
        f"replayed samples are {x.dtype} {tuple(x.shape[1:])} and those of the mini-batch "
        f"{stream.dtype} {tuple(stream.shape[1:])}",
        fix="give transform=, from raw samples to what the model takes, a batch at a time",
    )


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One behind the other; a single one is given back as it is, without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def append_labels(
    mbatch: list[Tensor], labels: Tensor, tasks: Tensor, *, with_tasks: bool = False
) -> None:
    """Append (n,) class and task labels to a mini-batch (x, y) or (x, y, task), in place.

    Args:
        mbatch: with the samples in place; without labels when all rows are replayed.
        labels: (n,) class labels.
        tasks: (n,) task labels.
        with_tasks: whether a mini-batch without labels gets task labels.

    Raises:
        BadInputError: the mini-batch has other fields than these.
    """
    device = mbatch[0].device
    added = [labels.to(device, non_blocking=True), tasks.to(device, non_blocking=True)]
    if len(mbatch) == 1:
        mbatch += [column.clone() for column in (added if with_tasks else added[:1])]
        return
    mbatch[1] = torch.cat((mbatch[1], added[0]))
    if len(mbatch) == 2:
        return
    if len(mbatch) != 3:
        raise BadInputError(
            f"the mini-batch has {len(mbatch)} fields", fix="use (x, y) or (x, y, task label)"
        )
    mbatch[2] = torch.cat((mbatch[2], added[1]))


@dataclass(frozen=True)
class _Chain:
    """Several batched transforms, one after the other."""

    transforms: Sequence[BatchTransform]

    def __call__(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


@dataclass
class PerSample:
    """The experience's own transforms, sample by sample: right for any of them, and slow.

    Warns once what it costs a sample.

    Attributes:
        seconds: time spent so far.
        rows: samples transformed so far.
    """

    transforms: Sequence[Transform]
    kind: Kind = "tensor"
    seconds: float = 0.0
    rows: int = 0
    _warned: bool = field(default=False, repr=False)

    def __call__(self, x: Tensor) -> Tensor:
        """Model input (n, *shape) for raw samples (n, *shape)."""
        start = perf_counter()
        out = torch.stack([self._one(sample) for sample in x.cpu()]).to(x.device)
        self.seconds += perf_counter() - start
        self.rows += len(x)
        if self.rows >= _WARN_AFTER_ROWS and not self._warned:
            self._warned = True
            self.warn()
        return out

    def warn(self) -> None:
        """Say what looping over samples costs."""
        each = 1e6 * self.seconds / max(self.rows, 1)
        warnings.warn(
            f"the experience's transforms cost {each:.0f} us for every replayed sample: give "
            "transform=, which takes a whole batch, to replay at full speed",
            stacklevel=2,
        )

    def _one(self, sample: Tensor) -> Tensor:
        value: Any = sample
        if self.kind == "image":
            value = fromarray(sample.numpy())
        elif self.kind == "array":
            value = sample.numpy()
        for transform in self.transforms:
            value = transform(value)
        return as_tensor(value)
