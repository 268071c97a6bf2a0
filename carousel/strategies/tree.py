"""Where the rows of an Avalanche data set come from: its leaves, and the transforms between.

An Avalanche data set is a tree of views (subsets, concatenations) with transforms at its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from avalanche.benchmarks.utils.data import AvalancheDataset, _FlatDataWithTransform
from avalanche.benchmarks.utils.flat_data import FlatData
from avalanche.benchmarks.utils.transforms import MultiParamCompose, TupleTransform
from torch.utils.data import ConcatDataset, Subset

from carousel.errors import BadInputError

__all__ = ["Ints", "Place", "Step", "Transform", "find_places"]

Ints: TypeAlias = npt.NDArray[np.int64]
Transform: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Step:
    """One transform of a single sample; `x` and `y` are None where they change nothing.

    A frozen step is part of the data, such as the permutation that makes an experience; the
    others are augmentation and preprocessing of the experience.
    """

    x: Transform | None
    y: Transform | None
    frozen: bool


@dataclass(frozen=True)
class Place:
    """Some rows of the data set: they lie in `leaf` at `inside`, and pass through `steps`."""

    leaf: Any
    inside: Ints
    outside: Ints
    steps: tuple[Step, ...]


def find_places(dataset: Any, group: str = "train") -> list[Place]:
    """The leaves under a data set, each once for each way through transforms to it.

    Args:
        dataset: of Avalanche, or any of torch.
        group: of transforms, ``"train"`` or ``"eval"``.

    Raises:
        BadInputError: a transform works on image and target together.
    """
    walk = _Walk(group)
    rows = np.arange(len(dataset))
    walk.down(dataset, rows, rows, ())
    return _merge(walk.places)


class _Walk:
    """The way through a tree, with one group of its transforms."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.places: list[Place] = []

    def down(self, data: Any, inside: Ints, outside: Ints, above: tuple[Step, ...]) -> None:
        """Go down from `data`, whose rows `inside` are the rows `outside` of the whole."""
        if isinstance(data, AvalancheDataset):
            self.down(data._flat_data, inside, outside, above)
        elif isinstance(data, FlatData):
            if data._indices is not None:
                inside = _as_ints(data._indices)[inside]
            steps = (*_steps_of(data, self._group), *above)
            self._into_each(data._datasets, inside, outside, steps)
        elif type(data) is Subset:
            self.down(data.dataset, _as_ints(data.indices)[inside], outside, above)
        elif type(data) is ConcatDataset:
            self._into_each(data.datasets, inside, outside, above)
        else:
            self.places.append(Place(data, inside, outside, above))

    def _into_each(
        self, children: Sequence[Any], inside: Ints, outside: Ints, steps: tuple[Step, ...]
    ) -> None:
        ends = np.cumsum([len(child) for child in children])
        owner = np.searchsorted(ends, inside, side="right")
        for number, child in enumerate(children):
            here = owner == number
            if here.any():
                start = ends[number] - len(child)
                self.down(child, inside[here] - start, outside[here], steps)


def _as_ints(indices: Sequence[int]) -> Ints:
    return np.fromiter(indices, np.int64, len(indices))


def _steps_of(node: FlatData, group: str) -> list[Step]:
    """The transforms of one node, in the order in which Avalanche applies them."""
    if not isinstance(node, _FlatDataWithTransform):
        return []
    kinds = ((node._frozen_transform_groups, True), (node._transform_groups, False))
    return [
        step for kind, frozen in kinds for step in _steps_in(kind.transform_groups[group], frozen)
    ]


def _steps_in(transform: Any, frozen: bool) -> list[Step]:
    if transform is None:
        return []
    if isinstance(transform, MultiParamCompose):
        return [step for inner in transform.transforms for step in _steps_in(inner, frozen)]
    if isinstance(transform, TupleTransform):
        x, y = [*transform.transforms, None, None][:2]
        return [] if x is None and y is None else [Step(x, y, frozen)]
    raise BadInputError(
        f"the transform {transform!r} works on image and target together",
        fix="give the image and the target a transform each",
    )


def _merge(places: list[Place]) -> list[Place]:
    groups: dict[tuple[int, ...], list[Place]] = {}
    for place in places:
        # by identity: a user's transform need be neither hashable nor comparable
        way = (id(place.leaf), *(id(part) for step in place.steps for part in (step.x, step.y)))
        groups.setdefault(way, []).append(place)
    return [group[0] if len(group) == 1 else _joined(group) for group in groups.values()]


def _joined(group: list[Place]) -> Place:
    inside = np.concatenate([place.inside for place in group])
    outside = np.concatenate([place.outside for place in group])
    return Place(group[0].leaf, inside, outside, group[0].steps)
