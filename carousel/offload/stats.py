"""What moved, what it cost, and how much stays in RAM."""

from __future__ import annotations

from dataclasses import dataclass

from carousel.offload.book import Book
from carousel.offload.forecast import usual_step_bytes
from carousel.offload.wear import Wear

__all__ = ["OffloadStats"]


@dataclass(frozen=True, slots=True)
class OffloadStats:
    """Counters of an optimizer since it was made or resumed; bytes, seconds.

    Args:
        steps: steps of the optimizer, those before a resume included.
        committed_step: the newest recovery point, None without commits.
        state_bytes: of all states.
        ram_bytes: taken by states that stay, ring and scratch.
        budget_bytes: RAM that may be taken, None for no limit.
        resident_fraction: share of the states that stays in RAM, 0 to 1.
        file_bytes: disk space of the states' file.
        read_bytes, written_bytes: moved from and to it.
        read_stall_seconds, commit_stall_seconds: that steps waited for a chunk, and a commit.
        store_written_bytes: of records to the storage since it was made, as far as was committed
            before a resume.
        max_bytes_written: limit of these, None for none.
        step_written_bytes: that a step writes if every parameter has a gradient, an estimate.
        moves: how often the states were moved because parameters had changed.
        direct: whether the page cache is passed by.
    """

    steps: int
    committed_step: int | None
    state_bytes: int
    ram_bytes: int
    budget_bytes: int | None
    resident_fraction: float
    file_bytes: int
    read_bytes: int
    written_bytes: int
    store_written_bytes: int
    max_bytes_written: int | None
    step_written_bytes: int
    read_stall_seconds: float
    commit_stall_seconds: float
    moves: int
    direct: bool

    @staticmethod
    def of(book: Book) -> OffloadStats:
        """The counters of an optimizer at this moment."""
        shelf, states = book.shelf, book.shelf.states
        room, engine, file = states.room, states.engine, states.file
        written = 0 if file is None else file.written_bytes
        wear = Wear(None) if shelf.home is None else shelf.home.wear
        return OffloadStats(
            steps=book.steps,
            committed_step=states.committed_step,
            state_bytes=room.state_bytes,
            ram_bytes=room.used_bytes,
            budget_bytes=shelf.wishes.budget,
            resident_fraction=room.pinned_bytes / room.state_bytes if room.state_bytes else 1.0,
            file_bytes=0 if file is None else file.nbytes,
            read_bytes=shelf.moved_bytes[0] + (0 if file is None else file.read_bytes),
            written_bytes=shelf.moved_bytes[1] + written,
            store_written_bytes=wear.before + written,
            max_bytes_written=wear.limit,
            step_written_bytes=usual_step_bytes(book),
            read_stall_seconds=0.0 if engine is None else engine.read_stall,
            commit_stall_seconds=0.0 if engine is None else engine.commit_stall,
            moves=shelf.moves,
            direct=file is not None and file.direct,
        )
