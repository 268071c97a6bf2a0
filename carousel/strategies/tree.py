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


def find_places(dataset: Any) -> list[Place]:
    """The leaves under a data set, each once for each way through transforms to it.

    Raises:
        BadInputError: a transform works on image and target together.
    """
    places: list[Place] = []
    rows = np.arange(len(dataset))
    _walk(dataset, rows, rows, (), places)
    return _merge(places)


def _walk(
    data: Any, inside: Ints, outside: Ints, above: tuple[Step, ...], places: list[Place]
) -> None:
    """Go down from `data`, whose rows `inside` are the rows `outside` of the whole."""
    if isinstance(data, AvalancheDataset):
        _walk(data._flat_data, inside, outside, above, places)
    elif isinstance(data, FlatData):
        if data._indices is not None:
            inside = _as_ints(data._indices)[inside]
        _descend(data._datasets, inside, outside, (*_steps_of(data), *above), places)
    elif type(data) is Subset:
        _walk(data.dataset, _as_ints(data.indices)[inside], outside, above, places)
    elif type(data) is ConcatDataset:
        _descend(data.datasets, inside, outside, above, places)
    else:
        places.append(Place(data, inside, outside, above))


def _descend(
    children: Sequence[Any],
    inside: Ints,
    outside: Ints,
    steps: tuple[Step, ...],
    places: list[Place],
) -> None:
    ends = np.cumsum([len(child) for child in children])
    owner = np.searchsorted(ends, inside, side="right")
    for number, child in enumerate(children):
        here = owner == number
        if here.any():
            start = ends[number] - len(child)
            _walk(child, inside[here] - start, outside[here], steps, places)


def _as_ints(indices: Sequence[int]) -> Ints:
    return np.fromiter(indices, np.int64, len(indices))


def _steps_of(node: FlatData) -> list[Step]:
    """The training transforms of one node, in the order in which Avalanche applies them."""
    if not isinstance(node, _FlatDataWithTransform):
        return []
    groups = ((node._frozen_transform_groups, True), (node._transform_groups, False))
    return [
        step
        for group, frozen in groups
        for step in _steps_in(group.transform_groups["train"], frozen)
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
