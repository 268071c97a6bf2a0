"""What a strategy may ask about a stream before it trains on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from avalanche.benchmarks import CLExperience

from carousel.strategies.raw import raw_source

__all__ = ["StreamFacts", "facts_of", "whole_of"]


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream in a few words; see `LeanTemplate.check_stream`.

    Attributes:
        n_classes: classes in the whole stream, as far as they are known.
        input_shape: of one raw sample, without the batch.
        dtype: of raw samples.
        task_labels: whether samples tell which experience they belong to.
        slots: samples that the memory holds, None where that is not known.
    """

    n_classes: int
    input_shape: tuple[int, ...]
    dtype: torch.dtype
    task_labels: bool
    slots: int | None = None


def facts_of(experience: Any) -> StreamFacts:
    """What an experience of Avalanche tells about the stream that it belongs to.

    Args:
        experience: of either benchmark family.

    Example:
        >>> from carousel.data import load_stream, to_benchmark
        >>> facts = facts_of(to_benchmark(load_stream("split-digits")).train_stream[0])
        >>> facts.n_classes, facts.input_shape, facts.task_labels
        (10, (1, 8, 8), False)
    """
    source = raw_source(experience.dataset)
    sample = source.rows(torch.tensor([0]))
    whole = whole_of(experience)
    stream = getattr(whole, "origin_stream", None)
    # a stream that makes its experiences one by one is not run through for this
    known = stream if isinstance(stream, Sequence) else [whole]
    classes: set[int] = set()
    tasks: set[int] = set()
    for part in map(_unmasked, known):
        classes.update(getattr(part, "classes_in_this_experience", None) or ())
        tasks.update(getattr(part, "task_labels", None) or ())
    classes.update(torch.unique(source.labels).tolist())
    return StreamFacts(
        n_classes=len(classes),
        input_shape=tuple(sample.shape[1:]),
        dtype=sample.dtype,
        task_labels=len(tasks) > 1 or (len(tasks) == 1 and len(known) == 1),
    )


def whole_of(experience: Any) -> Any:
    """The experience that an online one is a piece of; any other is whole itself."""
    return getattr(_unmasked(experience), "origin_experience", None) or experience


def _unmasked(experience: Any) -> Any:
    return experience.logging() if isinstance(experience, CLExperience) else experience
