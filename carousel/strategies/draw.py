"""Which rows of the memory a step replays."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from carousel.errors import BadInputError
from carousel.memory import Carousel, Replay
from carousel.memory.seeds import generator
from carousel.strategies.loader import StreamLoader

__all__ = ["Draw", "ReplayRule", "make_draw"]

ReplayRule: TypeAlias = Literal["concat", "mixed"]


class Draw(Protocol):
    """Gives the rows to replay, step by step."""

    def start_epoch(self, loader: Any) -> None:
        """A pass over `loader` begins."""
        ...

    def next(self) -> Replay | None:
        """The rows of this step, None for none."""
        ...


def make_draw(rule: ReplayRule, carousel: Carousel, batch_size: int, seed: int) -> Draw:
    """The rule of this name.

    Raises:
        BadInputError: there is no such rule.
    """
    if rule == "concat":
        return _Concat(carousel, batch_size)
    if rule == "mixed":
        return _Mixed(carousel, seed)
    raise BadInputError(f"replay is {rule!r}", fix='use "concat" or "mixed"')


class _Concat:
    """As many rows every step, drawn anew, beside the batch of the stream."""

    def __init__(self, carousel: Carousel, batch_size: int) -> None:
        self._carousel = carousel
        self._batch_size = batch_size

    def start_epoch(self, loader: Any) -> None:
        pass

    def next(self) -> Replay | None:
        if self._carousel.filled == 0:
            return None
        return self._carousel.sample(self._batch_size)


class _Mixed:
    """Each row once an epoch, the stream and the memory shuffled together.

    A `StreamLoader` draws one permutation over both. Of any other loader only the number of
    batches is known: the memory is shuffled and dealt to them evenly.
    """

    def __init__(self, carousel: Carousel, seed: int) -> None:
        self._carousel = carousel
        self._rng = generator(seed, "mixed")
        self._slots = np.empty(0, np.int64)

    def start_epoch(self, loader: Any) -> None:
        self._slots = self._carousel.filled_slots()
        self._loader = loader if isinstance(loader, StreamLoader) else None
        if self._loader is not None:
            self._loader.mix = len(self._slots)
            return
        deck = self._rng.permutation(self._slots)
        self._hands = iter(np.array_split(deck, max(len(loader), 1)))

    def next(self) -> Replay | None:
        if self._loader is not None:
            slots = self._slots[self._loader.memory_places.numpy()]
        else:
            slots = next(self._hands, self._slots[:0])
        return self._carousel.sample_slots(slots) if len(slots) else None
