"""All draws of a step: a method may replay several batches that know nothing of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from carousel.memory import Carousel, Replay
from carousel.strategies.draw import Draw, ReplayRule, make_draw
from carousel.strategies.loader import StreamLoader

__all__ = ["Draws", "Part", "make_draws"]

Part: TypeAlias = tuple[Replay, slice]
"""A replayed batch, and where its rows are in the mini-batch."""


class Draws:
    """Draws that a step makes one after the other.

    Args:
        draws: none before and after an experience.
    """

    def __init__(self, draws: Sequence[Draw] = ()) -> None:
        self._draws = draws

    def start_epoch(self, loader: Any) -> None:
        """A pass over `loader` begins."""
        if isinstance(loader, StreamLoader):
            loader.room = 0
        for draw in self._draws:
            draw.start_epoch(loader)

    def next(self, start: int, tail: Tensor | None) -> list[Part]:
        """The batches of this step, of those that give any.

        Args:
            start: rows of the stream in the mini-batch.
            tail: where samples are gathered one batch after the other, while there is room.
        """
        parts: list[Part] = []
        for draw in self._draws:
            replay = draw.next(tail)
            if replay is not None:
                parts.append((replay, slice(start, start + len(replay))))
                start += len(replay)
                tail = None if tail is None else tail[len(replay) :]
        return parts

    def memory_changed(self) -> None:
        """Other slots may be filled than before."""
        for draw in self._draws:
            draw.memory_changed()

    def state_dict(self) -> list[dict[str, Any]]:
        """What the next steps depend on, a state a draw."""
        return [draw.state_dict() for draw in self._draws]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Go on from a state of as many draws."""
        for draw, state in zip(self._draws, states, strict=True):
            draw.load_state_dict(state)


def make_draws(
    rule: ReplayRule, carousel: Carousel, batch_size: int, rngs: Sequence[np.random.Generator]
) -> Draws:
    """A draw for each of the generators, all by one rule; see `make_draw`."""
    return Draws([make_draw(rule, carousel, batch_size, rng) for rng in rngs])
