"""Which rows of the memory a step replays."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory import Carousel, Replay
from carousel.memory.seeds import load_state, state_of
from carousel.strategies.loader import StreamLoader
from carousel.strategies.memory_loader import MemoryLoader

__all__ = ["Draw", "ReplayRule", "make_draw"]

Ints: TypeAlias = npt.NDArray[np.int64]
ReplayRule: TypeAlias = Literal["concat", "mixed", "memory"]

_STEPS_AHEAD = 16


class Draw(Protocol):
    """Gives the rows to replay in one experience, step by step."""

    def start_epoch(self, loader: Any) -> None:
        """A pass over `loader` begins."""
        ...

    def next(self, tail: Tensor | None = None) -> Replay | None:
        """The rows of this step, None for none.

        They are gathered into the start of `tail` if it has as many rows.
        """
        ...

    def memory_changed(self) -> None:
        """Other slots may be filled than before."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on, as plain types."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        ...


def make_draw(
    rule: ReplayRule, carousel: Carousel, batch_size: int, rng: np.random.Generator
) -> Draw:
    """The rule of this name, for one experience.

    Raises:
        BadInputError: there is no such rule.
    """
    if rule == "concat":
        return _Concat(carousel, batch_size, rng)
    if rule in ("mixed", "memory"):
        return _Mixed(carousel, rng)
    raise BadInputError(f"replay is {rule!r}", fix='use "concat" or "mixed"')


class _Concat:
    """As many rows every step, drawn anew, beside the batch of the stream.

    Slots are drawn for several steps together: that code, run once a step among all the rest of
    it, is never in the processor's cache, and costs more than the gather.
    """

    def __init__(self, carousel: Carousel, batch_size: int, rng: np.random.Generator) -> None:
        self._carousel = carousel
        self._batch_size = batch_size
        self._rng = rng
        self._drawn: list[Ints] = []
        self._filled = 0

    def start_epoch(self, loader: Any) -> None:
        if isinstance(loader, StreamLoader):
            loader.room += min(self._batch_size, self._carousel.filled)

    def next(self, tail: Tensor | None = None) -> Replay | None:
        filled = self._carousel.filled
        if filled == 0:
            return None
        if filled != self._filled:
            self.memory_changed()
            self._filled = filled
        if not self._drawn:
            self._drawn = self._draw(self._carousel.filled_slots())
        return _gather(self._carousel, self._drawn.pop(), tail)

    def memory_changed(self) -> None:
        self._drawn = []

    def state_dict(self) -> dict[str, Any]:
        drawn = [slots.tolist() for slots in self._drawn]
        return {"rng": state_of(self._rng), "drawn": drawn, "filled": self._filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_state(self._rng, state["rng"])
        self._drawn = [np.array(slots, np.int64) for slots in state["drawn"]]
        self._filled = int(state["filled"])

    def _draw(self, slots: Ints) -> list[Ints]:
        count = min(self._batch_size, len(slots))
        choose = self._rng.choice
        return [choose(slots, count, replace=False, shuffle=False) for _ in range(_STEPS_AHEAD)]


class _Mixed:
    """Each row once an epoch, the stream (if there is one) and the memory shuffled together.

    Our loaders draw one permutation over both. Of any other loader only the number of batches is
    known: the memory is shuffled and dealt to them evenly.
    """

    def __init__(self, carousel: Carousel, rng: np.random.Generator) -> None:
        self._carousel = carousel
        self._rng = rng
        self._slots = np.empty(0, np.int64)

    def start_epoch(self, loader: Any) -> None:
        self._slots = self._carousel.filled_slots()
        self._loader = loader if isinstance(loader, StreamLoader | MemoryLoader) else None
        if self._loader is not None:
            self._loader.mix = len(self._slots)
            return
        deck = self._rng.permutation(self._slots)
        self._hands = iter(np.array_split(deck, max(len(loader), 1)))

    def next(self, tail: Tensor | None = None) -> Replay | None:
        if self._loader is not None:
            slots = self._slots[self._loader.memory_places.numpy()]
        else:
            slots = next(self._hands, self._slots[:0])
        return _gather(self._carousel, slots, tail) if len(slots) else None

    def memory_changed(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _gather(carousel: Carousel, slots: Ints, tail: Tensor | None) -> Replay:
    if tail is None or len(tail) < len(slots):
        return carousel.sample_slots(slots)
    return carousel.sample_slots(slots, {"x": tail[: len(slots)]})
