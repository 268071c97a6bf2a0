"""Streams: labelled data cut into experiences that a learner meets one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from carousel.data.dataset import ArrayDataset, Layout
from carousel.data.from_torch import read_dataset
from carousel.data.split import generator
from carousel.data.transform import ToModelInput
from carousel.errors import BadInputError

__all__ = ["OnlineExperience", "Scenario", "Split", "Stream", "online"]

Scenario = Literal["class", "domain"]


@dataclass(frozen=True)
class Split:
    """The samples of one experience, for training or for testing.

    Attributes:
        x: (n, C, H, W) raw samples as they are stored, uint8 or float32.
        y: (n,) int64 labels, positions in `Stream.class_names`.
        task: number of the experience.
        classes: the labels that occur in the training samples of the experience, ascending.
    """

    x: Tensor
    y: Tensor
    task: int
    classes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Stream:
    """A sequence of experiences; ``train[i]`` and ``test[i]`` belong together.

    Labels keep their place in `class_names`, whatever the order in which classes arrive.

    Attributes:
        name: for messages and run folders.
        train: training samples of each experience.
        test: test samples of each experience, never seen in training.
        n_classes: number of classes over all experiences.
        input_shape: shape of one sample, (C, H, W).
        class_order: labels in the order of arrival (ascending in a domain-incremental stream).
        class_names: name of each label.
        transform: raw samples to model input, a batch at a time; see `ToModelInput`.
        meta: scenario, seeds, how the test set was chosen, licence, citation; plain JSON values.

    Example:
        >>> import numpy as np
        >>> x, y = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 6
        >>> stream = Stream.from_arrays(x, y, experiences=3)
        >>> [len(split) for split in stream.train], [len(split) for split in stream.test]
        ([16, 16, 16], [4, 4, 4])
    """

    name: str
    train: tuple[Split, ...]
    test: tuple[Split, ...]
    n_classes: int
    input_shape: tuple[int, ...]
    class_order: tuple[int, ...]
    class_names: tuple[str, ...]
    transform: ToModelInput = field(default_factory=ToModelInput)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        experiences: int | None = None,
        scenario: Scenario = "class",
        seed: int | None = 0,
        group: ArrayLike | None = None,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        group_test: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        layout: Layout = "auto",
        normalize: bool = False,
        name: str = "arrays",
    ) -> Stream:
        """A stream from arrays or tensors; see `ArrayDataset.of` and `make_stream`."""
        from carousel.data.scenarios import make_stream

        dataset = ArrayDataset.of(
            x,
            y,
            group=group,
            x_test=x_test,
            y_test=y_test,
            group_test=group_test,
            class_names=class_names,
            layout=layout,
            name=name,
        )
        return make_stream(dataset, experiences, scenario=scenario, seed=seed, normalize=normalize)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        test: Any = None,
        experiences: int | None = None,
        scenario: Scenario = "class",
        seed: int | None = 0,
        class_names: Sequence[str] | None = None,
        normalize: bool = False,
        name: str = "dataset",
    ) -> Stream:
        """A stream from a torch data set of ``(x, y)`` pairs; it needs no ``targets``.

        Every sample is read once into RAM. Images may be PIL images, arrays or tensors. Random
        augmentation must not be part of the data set: it would be frozen into the stored samples.

        Args:
            dataset: has ``len()`` and ``[i]``; more than two fields a sample are ignored.
            test: a second data set to test on; by default 1/6 of each class is held out.
            experiences: see `make_stream`, as for `scenario`, `seed` and `normalize`.
            scenario: "class" or "domain" (which needs groups: use `from_arrays`).
            seed: of the class order.
            class_names: name of label 0, 1, ...
            normalize: see `make_stream`.
            name: for messages and run folders.
        """
        x, y = read_dataset(dataset, "dataset")
        x_test, y_test = (None, None) if test is None else read_dataset(test, "test")
        return cls.from_arrays(
            x,
            y,
            x_test=x_test,
            y_test=y_test,
            experiences=experiences,
            scenario=scenario,
            seed=seed,
            class_names=class_names,
            normalize=normalize,
            name=name,
        )


@dataclass(frozen=True)
class OnlineExperience:
    """A few samples of an experience, as they arrive.

    Attributes:
        split: the samples; `split.task` is the number of the experience they belong to.
        is_first: no sample of this experience came before.
        is_last: no sample of this experience follows.
    """

    split: Split
    is_first: bool
    is_last: bool


def online(stream: Stream, batch_size: int, *, seed: int | None = 0) -> Iterator[OnlineExperience]:
    """The training samples of a stream in portions of `batch_size`, each sample once.

    Args:
        stream: any stream; portions never cross the bounds of its experiences.
        batch_size: samples a portion; the last of an experience may be smaller.
        seed: shuffles within each experience; None keeps the stored order.

    Example:
        >>> import numpy as np
        >>> stream = Stream.from_arrays(np.zeros((30, 4, 4), np.uint8), np.arange(30) % 2)
        >>> [(len(part.split), part.is_last) for part in online(stream, 8)]
        [(8, False), (5, True), (8, False), (5, True)]
    """
    if batch_size < 1:
        raise BadInputError(f"batch_size is {batch_size}", fix="give at least 1")
    rng = None if seed is None else generator(seed)
    for split in stream.train:
        rows = np.arange(len(split)) if rng is None else rng.permutation(len(split))
        for start in range(0, len(rows), batch_size):
            part = torch.from_numpy(rows[start : start + batch_size])
            yield OnlineExperience(
                Split(split.x[part], split.y[part], split.task, split.classes),
                is_first=start == 0,
                is_last=start + batch_size >= len(rows),
            )
