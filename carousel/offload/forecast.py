"""What a step is going to write, before it begins."""

from __future__ import annotations

import logging
from collections.abc import Collection

from torch import Tensor

from carousel.offload.book import Book, Groups, State
from carousel.offload.plan import Chunk
from carousel.offload.roster import Roster
from carousel.offload.states import States

__all__ = ["log_wear", "refuse_wear", "usual_step_bytes"]

logger = logging.getLogger("carousel.offload")


def refuse_wear(book: Book, groups: Groups, state: State, *, waits: bool = False) -> None:
    """Refuse a step that would exceed the bytes that may be written.

    What a commit right after the step writes counts too, due or not; so whatever step was let
    through can be committed.

    Args:
        book: of the optimizer; all that earlier steps write was handed to its storage.
        groups: of the optimizer.
        state: of before the step.
        waits: gradients are still to come, for all parameters that can have one.

    Raises:
        TierFullError: it would; nothing was changed.
        BadInputError: parameters have changed and do not fit any more; nothing was changed.
    """
    home, states = book.shelf.home, book.shelf.states
    if home is None or home.wear.limit is None:
        return
    if book.roster.holds(groups, state):
        wanted = _with_gradients(book.roster.params, waits=waits)
        more = _of_step(states, wanted, recoverable=home.recoverable)
    else:  # all records move to a new file first
        fresh = Roster.of(groups, state)
        more = 2 * book.shelf.moved_size(fresh)
    home.wear.refuse(states.given_bytes, more, "the next step")


def usual_step_bytes(book: Book) -> int:
    """Bytes that a step in which every parameter has a gradient writes, its commit included."""
    states, home = book.shelf.states, book.shelf.home
    if home is None:
        return 0
    sizes = [layout.nbytes for layout in states.room.layouts]
    resident, streamed = sum(sizes[: states.room.pinned]), sum(sizes[states.room.pinned :])
    every = book.settings.commit_every
    return streamed + (resident // every if home.recoverable and every else 0)


def log_wear(book: Book) -> None:
    """Say in the log what a step writes, for flash cards count it."""
    home = book.shelf.home
    if home is not None:
        logger.info(
            "a step writes about %d bytes to %s, where %d were written before%s",
            usual_step_bytes(book),
            home.folder,
            home.wear.before,
            "" if home.wear.limit is None else f" and {home.wear.limit} may be",
        )


def _with_gradients(params: Collection[Tensor], *, waits: bool) -> set[int]:
    return {
        number
        for number, param in enumerate(params)
        if param.grad is not None or (waits and param.requires_grad)
    }


def _of_step(states: States, wanted: set[int], *, recoverable: bool) -> int:
    """Bytes of a step that updates these parameters, and of a commit right after it."""
    touched = [chunk for chunk in states.plan.chunks if not wanted.isdisjoint(_numbers(chunk))]
    numbers = {chunk.index for chunk in touched}
    pinned = states.room.pinned
    written = {number for number in numbers if number >= pinned}
    if recoverable:
        written |= {number for number in numbers if number < pinned} | states.unsaved
    return sum(states.room.layouts[number].nbytes for number in written)


def _numbers(chunk: Chunk) -> set[int]:
    return {segment.param for segment in chunk.segments}
