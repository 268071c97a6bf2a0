"""Raw samples of an experience: as they are before augmentation, in batches.

What is stored is what the data set holds, with frozen transforms (they are part of the data, such
as the permutation that makes an experience) and without the others (preprocessing, augmentation).
Rows of tensors are taken with one index operation; anything else is read item by item.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from avalanche.benchmarks.utils.classification_dataset import _TensorClassificationDataset
from avalanche.benchmarks.utils.flat_data import ConstantSequence
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import TensorDataset

from carousel.errors import BadInputError
from carousel.strategies.tree import Place, Step, Transform, find_places

__all__ = ["Kind", "RawSource", "evaluation_transforms", "raw_source"]

Kind: TypeAlias = Literal["tensor", "array", "image"]
"""What an item's x is in the data set: a tensor, a numpy array, or a PIL image."""

_PLAIN_GETITEM = (TensorDataset.__getitem__, _TensorClassificationDataset.__getitem__)
_warned_about: set[str] = set()


class _Part(Protocol):
    @property
    def kind(self) -> Kind: ...

    def take(self, inside: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class RawSource:
    """The samples of one data set as they are stored, and the way from there to the model.

    Attributes:
        labels: (n,) int64 labels after target transforms: what the model is trained on.
        tasks: (n,) int64 task labels, 0 where the data set has none.
        carries_tasks: whether its mini-batches end with a task label.
        transforms: what the experience does to a single raw sample, in order.
        kind: what the first of `transforms` expects.
        tensor_backed: whether `rows` is an index operation and mini-batches are (x, y[, task]).
        repeatable: whether a row is the same each time; not so certain where a data set
            transforms its samples by itself, perhaps at random.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> source = raw_source(TensorDataset(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 1])))
        >>> source.rows(torch.tensor([2, 0])).shape, source.labels.tolist()
        (torch.Size([2, 1, 8, 8]), [0, 1, 1])
    """

    labels: Tensor
    tasks: Tensor
    carries_tasks: bool
    transforms: tuple[Transform, ...]
    kind: Kind
    tensor_backed: bool
    repeatable: bool
    _parts: tuple[_Part, ...]
    _owner: Tensor
    _inside: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: Tensor) -> RawSource:
        """The source of (k,) of the rows, in this order."""
        return replace(
            self,
            labels=self.labels[rows],
            tasks=self.tasks[rows],
            _owner=self._owner[rows],
            _inside=self._inside[rows],
        )

    def rows(self, rows: Tensor) -> Tensor:
        """Raw samples (k, *shape) of (k,) int64 rows, as a fresh tensor."""
        if len(self._parts) == 1:
            return self._parts[0].take(self._inside[rows])
        owner = self._owner[rows]
        here = [(owner == number).nonzero().squeeze(1) for number in range(len(self._parts))]
        taken = [
            part.take(self._inside[rows[places]])
            for part, places in zip(self._parts, here, strict=True)
        ]
        order = torch.empty_like(rows)
        order[torch.cat(here)] = torch.arange(len(rows))
        return torch.cat(taken)[order]

    def single(self) -> tuple[Tensor, Tensor] | None:
        """A tensor (m, *shape) and (n,) rows of it that are the samples, if there is just one."""
        part = self._parts[0]
        if len(self._parts) == 1 and isinstance(part, _Tensors):
            return part.x, self._inside
        return None

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Row numbers and raw samples of all rows in order, `size` at a time."""
        for rows in torch.split(torch.arange(len(self)), size):
            yield rows, self.rows(rows)


def raw_source(dataset: Any) -> RawSource:
    """Find the raw samples of an Avalanche data set, or of any torch data set of (x, y).

    Warns once when a data set under it transforms its samples by itself (`transform=` of
    torchvision): such transforms cannot be taken off, so what they give is what is stored.

    Raises:
        BadInputError: no samples, labels that are not whole numbers, or a transform that works on
            image and target together.
    """
    if len(dataset) == 0:
        raise BadInputError("the experience has no samples", fix="leave empty experiences out")
    places = find_places(dataset)
    parts = tuple(_part_of(place) for place in places)
    owner = torch.empty(len(dataset), dtype=torch.int64)
    inside = torch.empty_like(owner)
    for number, place in enumerate(places):
        outside = torch.from_numpy(place.outside)
        owner[outside] = number
        inside[outside] = torch.from_numpy(place.inside)
    carried = [a.name for a in _attributes(dataset).values() if a.use_in_getitem]
    return RawSource(
        labels=_labels(dataset, places),
        tasks=_tasks(dataset),
        carries_tasks="targets_task_labels" in carried,
        transforms=_cut(places[0].steps)[1],
        kind=parts[0].kind,
        tensor_backed=all(isinstance(part, _Tensors) for part in parts)
        and carried in ([], ["targets_task_labels"]),
        repeatable=not any(_is_baked(place.leaf) for place in places),
        _parts=parts,
        _owner=owner,
        _inside=inside,
    )


def evaluation_transforms(dataset: Any) -> tuple[Transform, ...]:
    """What a data set does to a single raw sample in evaluation, in order: no augmentation.

    Empty where it has transforms for training only; see `RawSource.transforms` for these.

    Raises:
        BadInputError: a transform works on image and target together.
    """
    return _cut(find_places(dataset, "eval")[0].steps)[1]


@dataclass(frozen=True)
class _Tensors:
    """Rows of one tensor."""

    x: Tensor
    kind: Kind = "tensor"

    def take(self, inside: Tensor) -> Tensor:
        return self.x.index_select(0, inside)


@dataclass(frozen=True)
class _Items:
    """Samples that are read one by one, with the transforms that are part of the data."""

    leaf: Any
    transforms: tuple[Transform, ...]
    kind: Kind
    empty: Tensor

    def take(self, inside: Tensor) -> Tensor:
        if len(inside) == 0:
            return self.empty
        samples = [as_tensor(_read(self.leaf, i, self.transforms)) for i in inside.tolist()]
        shapes = {tuple(sample.shape) for sample in samples}
        if len(shapes) > 1:
            raise BadInputError(
                f"samples have the shapes {sorted(shapes)}",
                fix="bring them to one shape in the data set, before the experience's transforms",
            )
        return torch.stack(samples)


def _part_of(place: Place) -> _Part:
    kept, _ = _cut(place.steps)
    leaf = place.leaf
    if not kept and _is_plain_tensors(leaf):
        return _Tensors(leaf.tensors[0])
    _warn_if_baked(leaf)
    first = _read(leaf, int(place.inside[0]), kept)
    tensor = as_tensor(first)
    return _Items(leaf, kept, _kind_of(first), tensor.new_empty((0, *tensor.shape)))


def _is_plain_tensors(leaf: Any) -> bool:
    return (
        isinstance(leaf, TensorDataset)
        and type(leaf).__getitem__ in _PLAIN_GETITEM
        and len(leaf.tensors) == 2
        and leaf.tensors[0].device.type == "cpu"
    )


def _cut(steps: Sequence[Step]) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
    """Transforms of x up to the last frozen one (part of the data), and those after it."""
    on_x = [(step.x, step.frozen) for step in steps if step.x is not None]
    kept = max((place + 1 for place, (_, frozen) in enumerate(on_x) if frozen), default=0)
    transforms = tuple(x for x, _ in on_x)
    return transforms[:kept], transforms[kept:]


def _read(leaf: Any, number: int, transforms: tuple[Transform, ...]) -> Any:
    x = leaf[number][0]
    for transform in transforms:
        x = transform(x)
    return x


def as_tensor(x: Any) -> Tensor:
    """One sample as a tensor; an image becomes uint8 (H, W) or (H, W, C)."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, Image):
        return torch.from_numpy(np.array(x))
    return torch.as_tensor(x)


def _kind_of(x: Any) -> Kind:
    if isinstance(x, Image):
        return "image"
    return "array" if isinstance(x, np.ndarray) else "tensor"


def _is_baked(leaf: Any) -> bool:
    return getattr(leaf, "transform", None) is not None


def _warn_if_baked(leaf: Any) -> None:
    name = type(leaf).__name__
    if _is_baked(leaf) and name not in _warned_about:
        _warned_about.add(name)
        warnings.warn(
            f"{name} transforms its samples by itself, so what it gives is what is stored and "
            "replayed: give the transform to the benchmark instead, to store raw samples",
            stacklevel=2,
        )


def _labels(dataset: Any, places: list[Place]) -> Tensor:
    labels = torch.empty(len(dataset), dtype=torch.int64)
    for place in places:
        values = _labels_at(dataset, place)
        if values.is_floating_point() or values.is_complex() or values.ndim != 1:
            raise BadInputError(
                f"labels are {values.dtype} of shape {tuple(values.shape[1:])} a sample",
                fix="give one whole number a sample",
            )
        labels[torch.from_numpy(place.outside)] = values.to(torch.int64)
    return labels


def _labels_at(dataset: Any, place: Place) -> Tensor:
    on_y = [step.y for step in place.steps if step.y is not None]
    if _is_plain_tensors(place.leaf):
        values: Tensor = place.leaf.tensors[1][torch.from_numpy(place.inside)]
        if not on_y:
            return values
        samples = list(values)
    elif "targets" in _attributes(dataset):
        targets = _attributes(dataset)["targets"].data
        return torch.tensor([int(targets[row]) for row in place.outside.tolist()])
    else:
        samples = [place.leaf[row][1] for row in place.inside.tolist()]
    for transform in on_y:
        samples = [transform(y) for y in samples]
    return torch.stack([torch.as_tensor(y) for y in samples])


def _tasks(dataset: Any) -> Tensor:
    attribute = _attributes(dataset).get("targets_task_labels")
    if attribute is None:
        return torch.zeros(len(dataset), dtype=torch.int64)
    if isinstance(attribute.data, ConstantSequence):
        return torch.full((len(dataset),), int(attribute.data[0]))
    return torch.tensor([int(task) for task in attribute.data])


def _attributes(dataset: Any) -> dict[str, Any]:
    return getattr(dataset, "_data_attributes", {})
