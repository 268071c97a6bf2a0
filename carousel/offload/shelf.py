"""Keeps the states of whatever parameters the optimizer has, and moves them when those change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from carousel.errors import CarouselError, StorageClosedError, StorageError
from carousel.offload.commit import Commit, Moment
from carousel.offload.home import Home
from carousel.offload.plan import WHOLE, Plan
from carousel.offload.room import Room, Wishes, make_room, size_chunks
from carousel.offload.roster import Roster
from carousel.offload.settings import OffloadSettings
from carousel.offload.states import States
from carousel.offload.states_file import StatesFile
from carousel.offload.team import Team
from carousel.offload.worlds import clear_worlds, refuse_other_worlds

__all__ = ["Refill", "Shelf"]

Refill: TypeAlias = Callable[[States, int, bool], None]
"""Gives new states their content, as of a step; True: also chunks that have no states."""


class Shelf:
    """The states of an optimizer's parameters.

    Args:
        wishes: about RAM.
        home: the folder; None: all is in RAM.
        team: the processes that share the parameters.

    Attributes:
        states: of the parameters of the moment.
        moves: how often they were moved since parameters had changed.
        moved_bytes: read and written in files that were replaced since.
        users: end what works on the states on other threads; called before they are closed.
    """

    def __init__(self, wishes: Wishes, home: Home | None, team: Team) -> None:
        self.wishes, self.home, self.team = wishes, home, team
        self.states: States
        self.moves = 0
        self.moved_bytes = (0, 0)
        self.users: list[Callable[[], None]] = []
        self._broken: BaseException | None = None
        self._closed = False

    @staticmethod
    def for_new(roster: Roster, settings: OffloadSettings, team: Team, *, fresh: bool) -> Shelf:
        """New states, all zero.

        Args:
            roster: the parameters.
            settings: of the optimizer.
            team: the processes that share the parameters.
            fresh: discard what is in the folder.

        Raises:
            BadInputError: the budget is below the least, or the folder holds something.
            TierFullError: the disk has no room.
            StorageError: the folder cannot be used.
        """
        wishes = settings.wishes(masters=settings.master == "auto")
        make_room(size_chunks(roster.specs, wishes), wishes)  # before anything is touched
        folder = settings.folder
        if folder is None:
            return Shelf(wishes, None, team)._start(roster)
        if fresh:
            clear_worlds(settings)
        else:
            refuse_other_worlds(settings)
        home = Home(
            folder,
            durability=settings.durability,
            io=settings.io,
            write_limit=settings.write_limit,
            ranks=settings.share != WHOLE,
        )
        try:
            home.require_empty()
            return Shelf(wishes, home, team)._start(roster)
        except BaseException:
            home.close()
            raise

    def go_on(self, plan: Plan, commit: Commit) -> None:
        """The states of a commit.

        Raises:
            BadInputError: the budget is below the least.
            StorageError: they are not what was committed.
        """
        assert self.home is not None
        room = make_room(plan, self.wishes)
        file = self.home.open_file(commit, [layout.nbytes for layout in room.layouts])
        self.home.keep_only(commit.file)
        self.home.wear.before = commit.written_bytes
        self.states = States(
            plan, room, self.wishes, home=self.home, file=file, chunks=commit.chunks, committed=True
        )

    def check(self) -> None:
        """Raise what keeps the states from being used."""
        if self._closed:
            raise StorageClosedError("the optimizer was closed")
        if self._broken is not None:
            raise self._broken
        self.states.check()

    @contextlib.contextmanager
    def unbroken(self) -> Iterator[None]:
        """What ends the block early, an interrupt too, leaves a step half done for ever."""
        try:
            yield
        except CarouselError as error:
            self._broken = error
            raise
        except BaseException as error:
            if self._broken is None:
                self._broken = StorageError(
                    f"a step was broken off ({error!r}): resume from the last commit, or load a "
                    "state_dict into a new optimizer"
                )
                self._broken.__cause__ = error
            raise

    def move(self, roster: Roster, refill: Refill, moment: Callable[[], Moment]) -> None:
        """States of other parameters, or with other content, in place of the present ones.

        A file is made anew beside the present one, which goes when the new one is committed: a
        kill in between leaves what was committed before.

        Args:
            roster: the parameters.
            refill: gives them their content, when nothing is under way any more.
            moment: makes what is committed, if anything was committed before.

        Raises:
            BadInputError, TierFullError: there is no room, or no more may be written; nothing was
                changed.
            StorageError: it failed in the middle; the last commit is intact, and the optimizer
                cannot go on.
        """
        old = self.states
        with self.team.together("a move of the states"):
            old.flush()
            plan, room = self._fit(roster)
        if self.home is None:
            self._move_in_ram(plan, room, refill)
        else:
            self._move_in_file(plan, room, refill, moment)
        self.moves += 1

    def moved_size(self, roster: Roster) -> int:
        """Bytes of the records of other parameters.

        Raises:
            BadInputError: the budget is below the least for them.
        """
        _, room = self._fit(roster)
        return sum(layout.nbytes for layout in room.layouts)

    def close(self) -> None:
        """Finish what was begun, and give the folder back; calling it again is fine.

        Raises:
            CarouselError: what a thread met.
        """
        if self._closed:
            return
        self._closed = True
        scratch = self.home is not None and not self.home.recoverable
        try:
            for end in self.users:
                end()
            self.states.close(remove=scratch)
        finally:
            if self.home is not None:
                self.home.close()

    def close_quietly(self) -> None:
        """Close when nobody is there to be told of errors.

        Garbage is collected on whichever thread, and one of these cannot wait for itself.
        """
        if threading.current_thread().name.startswith("carousel-offload"):
            with contextlib.suppress(RuntimeError):  # the interpreter ends: nothing is begun anew
                threading.Thread(target=self._close_and_forget, name="carousel-close").start()
            return
        self._close_and_forget()

    def _close_and_forget(self) -> None:
        with contextlib.suppress(CarouselError, OSError):
            self.close()

    def _start(self, roster: Roster) -> Shelf:
        plan, room = self._fit(roster)
        file = None
        if self.home is not None:
            file = self.home.make_file(plan, [layout.nbytes for layout in room.layouts])
        self.states = States(plan, room, self.wishes, home=self.home, file=file)
        return self

    def _fit(self, roster: Roster) -> tuple[Plan, Room]:
        plan = size_chunks(roster.specs, self.wishes)
        return plan, make_room(plan, self.wishes)

    def _make_file(self, plan: Plan, room: Room) -> StatesFile:
        """A new file, if all of the team can have theirs."""
        assert self.home is not None
        made: StatesFile | None = None
        try:
            with self.team.together("a move of the states"):
                sizes = [layout.nbytes for layout in room.layouts]
                wear, given = self.home.wear, self.states.given_bytes
                wear.refuse(given, sum(sizes), "moving the states to a new file")
                made = self.home.make_file(plan, sizes)
        except BaseException:
            if made is not None:
                made.remove()
            raise
        return made

    def _move_in_ram(self, plan: Plan, room: Room, refill: Refill) -> None:
        states = States(plan, room, self.wishes)
        refill(states, 0, False)
        self.states = states

    def _move_in_file(
        self, plan: Plan, room: Room, refill: Refill, moment: Callable[[], Moment]
    ) -> None:
        old, home, now = self.states, self.home, moment()
        assert home is not None
        assert old.file is not None
        file = self._make_file(plan, room)
        with self.unbroken():
            old.stop()  # the ring's RAM is wanted for the new one
            read, written = self.moved_bytes
            self.moved_bytes = read + old.file.read_bytes, written + old.file.written_bytes
            home.wear.before += old.file.written_bytes
            through = replace(room, pinned=0, ring=self.wishes.least_ring, pinned_bytes=0)
            new = States(plan, through, self.wishes, home=home, file=file)
            refill(new, now.step, old.committed)
            with self.team.together("a move of the states"):  # the old file is to last until then
                new.flush()
                if old.committed:
                    new.publish_now(now)
                new.stop()
            old.close(remove=True)
            self.states = States(
                plan,
                room,
                self.wishes,
                home=home,
                file=file,
                chunks=new.places.now(),
                committed=old.committed,
            )
