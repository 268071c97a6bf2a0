"""Keeps the states of whatever parameters the optimizer has, and moves them when those change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from carousel.errors import CarouselError, StorageClosedError, StorageError
from carousel.offload.commit import Commit, Moment
from carousel.offload.home import Home
from carousel.offload.plan import Plan
from carousel.offload.room import Room, Wishes, make_room, size_chunks
from carousel.offload.roster import Roster
from carousel.offload.settings import OffloadSettings
from carousel.offload.sources import Source, fill
from carousel.offload.states import States

__all__ = ["Shelf"]


class Shelf:
    """The states of an optimizer's parameters.

    Args:
        wishes: about RAM.
        home: the folder; None: all is in RAM.

    Attributes:
        states: of the parameters of the moment.
        moves: how often they were moved since parameters had changed.
        moved_bytes: read and written in files that were replaced since.
        users: end what works on the states on other threads; called before they are closed.
    """

    def __init__(self, wishes: Wishes, home: Home | None) -> None:
        self.wishes, self.home = wishes, home
        self.states: States
        self.moves = 0
        self.moved_bytes = (0, 0)
        self.users: list[Callable[[], None]] = []
        self._broken: BaseException | None = None
        self._closed = False

    @staticmethod
    def for_new(roster: Roster, settings: OffloadSettings, *, fresh: bool) -> Shelf:
        """New states, all zero.

        Args:
            roster: the parameters.
            settings: of the optimizer.
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
            return Shelf(wishes, None)._start(roster)
        if fresh:
            Home.clear(folder)
        home = Home(
            folder,
            durability=settings.durability,
            io=settings.io,
            write_limit=settings.write_limit,
        )
        try:
            home.require_empty()
            return Shelf(wishes, home)._start(roster)
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

    def move(
        self, roster: Roster, source: Callable[[], Source], moment: Callable[[], Moment]
    ) -> None:
        """States of other parameters, or with other content, in place of the present ones.

        A file is made anew beside the present one, which goes when the new one is committed: a
        kill in between leaves what was committed before.

        Args:
            roster: the parameters.
            source: makes the source of the content, when nothing is under way any more.
            moment: makes what is committed, if anything was committed before.

        Raises:
            BadInputError, TierFullError: there is no room, or no more may be written; nothing was
                changed.
            StorageError: it failed in the middle; the last commit is intact, and the optimizer
                cannot go on.
        """
        old = self.states
        old.flush()
        plan, room = self._fit(roster)
        if self.home is None:
            self._move_in_ram(roster, plan, room, source())
        else:
            self._move_in_file(roster, plan, room, source, moment)
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

    def _move_in_ram(self, roster: Roster, plan: Plan, room: Room, source: Source) -> None:
        states = States(plan, room, self.wishes)
        fill(states, source, roster.params, 0, every=False)
        self.states = states

    def _move_in_file(
        self,
        roster: Roster,
        plan: Plan,
        room: Room,
        source: Callable[[], Source],
        moment: Callable[[], Moment],
    ) -> None:
        old, home, now = self.states, self.home, moment()
        assert home is not None
        assert old.file is not None
        sizes = [layout.nbytes for layout in room.layouts]
        home.wear.refuse(old.given_bytes, sum(sizes), "moving the states to a new file")
        file = home.make_file(plan, sizes)
        with self.unbroken():
            old.stop()  # the ring's RAM is wanted for the new one
            read, written = self.moved_bytes
            self.moved_bytes = read + old.file.read_bytes, written + old.file.written_bytes
            home.wear.before += old.file.written_bytes
            through = replace(room, pinned=0, ring=self.wishes.least_ring, pinned_bytes=0)
            new = States(plan, through, self.wishes, home=home, file=file)
            fill(new, source(), roster.params, now.step, every=old.committed)
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
