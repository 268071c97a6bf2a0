"""From a stream to an Avalanche benchmark."""

from __future__ import annotations

from typing import Any

from torch.utils.data import TensorDataset

from carousel.data.augment import Augmentation, Augmented
from carousel.data.stream import Split, Stream

__all__ = ["to_benchmark"]


def to_benchmark(
    stream: Stream, *, task_labels: bool = False, augment: Augmentation = "none"
) -> Any:
    """The stream as an Avalanche benchmark that any strategy of Avalanche can train on.

    Every experience holds a `torch.utils.data.TensorDataset` of raw samples and labels.
    `stream.transform` is the ``train`` and ``eval`` transform group: plain Avalanche code applies
    it sample by sample; code that finds ``transform.batched`` may read the tensors and apply it
    once a batch. Experiences carry ``classes_in_this_experience`` and the other attributes of
    Avalanche's class timeline.

    Args:
        stream: what to convert; the tensors are shared, not copied.
        task_labels: mini-batches become (x, y, task) with the number of the experience, for
            multi-head models; by default they are (x, y).
        augment: random changes of training samples, new ones each time; see `Augmented`. What is
            stored and what is tested on stays as it is.

    Returns:
        An `avalanche.benchmarks.CLScenario` with ``train_stream`` and ``test_stream``.

    Example:
        >>> from carousel.data import load_stream
        >>> benchmark = to_benchmark(load_stream("split-digits"))
        >>> [sorted(e.classes_in_this_experience) for e in benchmark.train_stream][0]
        [4, 6]
    """
    from avalanche.benchmarks import (
        benchmark_from_datasets,
        with_classes_timeline,
        with_task_labels,
    )

    plain = benchmark_from_datasets(
        train=[_dataset(split, stream, task_labels, augment) for split in stream.train],
        test=[_dataset(split, stream, task_labels, "none") for split in stream.test],
    )
    timed = with_classes_timeline(plain)
    return with_task_labels(timed) if task_labels else timed


def _dataset(split: Split, stream: Stream, task_labels: bool, augment: Augmentation) -> Any:
    from avalanche.benchmarks.utils import DataAttribute, TransformGroups
    from avalanche.benchmarks.utils.classification_dataset import (
        TaskAwareSupervisedClassificationDataset,
    )
    from avalanche.benchmarks.utils.flat_data import ConstantSequence

    # Methods of Avalanche such as LwF ask for the task labels of a data set whose mini-batches
    # have none; they are all 0 then.
    task = split.task if task_labels else 0
    attributes = [
        DataAttribute(split.y.tolist(), "targets"),
        DataAttribute(
            ConstantSequence(task, len(split)), "targets_task_labels", use_in_getitem=task_labels
        ),
    ]
    plain = stream.transform
    train = plain if augment == "none" else Augmented(augment, plain)
    groups = TransformGroups({"train": train, "eval": plain})
    return TaskAwareSupervisedClassificationDataset(
        [TensorDataset(split.x, split.y)], data_attributes=attributes, transform_groups=groups
    )
