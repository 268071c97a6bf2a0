"""The states of one plan, wherever they are: a prefix of chunks in RAM, the others in a file.

A step passes over all chunks in the same order, so whatever a cache had kept of the last ones would
be gone before it is wanted again; a prefix that always stays saves its share of all traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch

from carousel.offload.commit import Commit, Moment
from carousel.offload.engine import Engine, Visit
from carousel.offload.home import Home
from carousel.offload.places import Committed, Places
from carousel.offload.plan import Chunk, Plan
from carousel.offload.record import layout_of, state_dtype
from carousel.offload.ring import Fields, Ring, anonymous, fields_of
from carousel.offload.room import Room, Wishes
from carousel.offload.states_file import StatesFile
from carousel.offload.sweep import Sweep

__all__ = ["CopyParams", "States"]

CopyParams: TypeAlias = Callable[[Chunk, Fields], None]
"""Copies the live parameters of a chunk into the field ``param`` of its record."""


class States:
    """Chunks in RAM and in a file, and the traffic between them.

    Args:
        plan: of the chunks.
        room: how much RAM there is for what.
        wishes: of the caller.
        home: where the file is; None: all is in RAM.
        file: of the records; belongs to this object from now on.
        chunks: where the records are, None for new states, all zero.
        committed: whether the newest commit is of this plan and file.

    Raises:
        CorruptRecordError: a record that stays in RAM is not what was committed.
    """

    def __init__(
        self,
        plan: Plan,
        room: Room,
        wishes: Wishes,
        *,
        home: Home | None = None,
        file: StatesFile | None = None,
        chunks: Committed | None = None,
        committed: bool = False,
    ) -> None:
        self.plan, self.room, self.wishes, self.home = plan, room, wishes, home
        self.file = file
        self.places = Places(len(plan.chunks), single=home is not None and not home.recoverable)
        if chunks is not None:
            self.places.restore(chunks)
        self._pinned = self._pin()
        self._dirty: set[int] = set()
        self.committed = committed
        self.committed_step: int | None = None
        self._last_commit = 0
        self._engine: Engine | None = None
        if file is not None:
            self._ring = Ring(room.ring, room.buffer_bytes)
            self._engine = Engine(
                file,
                self.places,
                room.layouts,
                plan.digest,
                self._ring,
                buffers=room.ring,
                readers=wishes.workers - 1 if file.direct else 1,
            )

    @property
    def engine(self) -> Engine | None:
        """The threads; None when all is in RAM and stays there."""
        return self._engine

    @property
    def given_bytes(self) -> int:
        """Bytes that are in the file since it was opened, or on their way to it."""
        return 0 if self._engine is None else self._engine.given_bytes

    @property
    def unsaved(self) -> set[int]:
        """Chunks that stay in RAM and have changed since the last commit."""
        return set(self._dirty)

    @property
    def whole_bytes(self) -> int:
        """Bytes of all states, those of other ranks too."""
        chunks = [chunk for turn in self.plan.rounds for chunk in turn if chunk is not None]
        wishes = self.wishes
        layouts = (
            layout_of(chunk, masters=wishes.masters, recoverable=wishes.recoverable)
            for chunk in chunks
        )
        return sum(layout.resident_bytes for layout in layouts)

    def check(self) -> None:
        """Raise what a thread met."""
        if self._engine is not None:
            self._engine.check()

    def ahead(self, visits: Sequence[Visit]) -> None:
        """Begin to read what the next sweep is going to want."""
        if self._engine is not None:
            self._engine.begin([v for v in visits if v.chunk >= self.room.pinned])

    def sweep(self, visits: Sequence[Visit], step: int) -> Sweep:
        """A pass over chunks; what the caller makes of their fields is kept.

        Args:
            visits: in the order that they come in. Where nothing is loaded the fields hold
                anything.
            step: that the records are of.
        """
        return Sweep(
            visits,
            ahead=self.ahead,
            lend=lambda visit: self._lend(visit.chunk, step),
            chunks=self.plan.chunks,
            pinned=self.room.pinned,
        )

    def borrow(self, chunk: int) -> Fields:
        """The fields of a chunk that stays in RAM, in or out of its turn.

        What the caller makes of them until the next commit is kept.
        """
        self._dirty.add(chunk)
        return self._pinned[chunk]

    def commit(self, moment: Moment, copy_params: CopyParams) -> None:
        """Make the records and this moment the recovery point, behind the caller's back.

        Returns when the commit before it is published, or this one with durability ``durable``.

        Raises:
            CarouselError: what a thread met; the last commit is intact.
        """
        assert self.home is not None
        self._stage(moment.step, copy_params)
        last, self._last_commit = self._last_commit, self._publish(moment)
        durable = self.home.durability == "durable"
        self._streaming().wait_for(self._last_commit if durable else last)

    def await_commit(self) -> None:
        """Wait until the last commit is published.

        Raises:
            CarouselError: what a thread met; the commit before it is intact.
        """
        if self._engine is not None:
            self._engine.wait_for(self._last_commit)

    def publish_now(self, moment: Moment) -> None:
        """Make the records in the file and this moment the recovery point, and wait for it."""
        self._last_commit = self._publish(moment)
        self._streaming().wait_for(self._last_commit)

    @contextmanager
    def _lend(self, chunk: int, step: int) -> Iterator[Fields]:
        if chunk < self.room.pinned:
            yield self.borrow(chunk)
            return
        engine = self._streaming()
        buffer = engine.take()
        yield self._ring.fields(buffer, self.room.layouts[chunk])
        engine.give(chunk, buffer, step)

    def _stage(self, step: int, copy_params: CopyParams) -> None:
        """Write the chunks that stay in RAM and have changed."""
        engine, dirty = self._streaming(), sorted(self._dirty)
        engine.begin([Visit(chunk, load=False) for chunk in dirty])
        for number in dirty:
            buffer = engine.take()
            layout = self.room.layouts[number]
            fields = self._ring.fields(buffer, layout)
            for name, value in self._pinned[number].items():
                fields[name].copy_(value)
            if layout.read_from:
                copy_params(self.plan.chunks[number], fields)
            engine.give(number, buffer, step)
        self._dirty.clear()

    def _publish(self, moment: Moment) -> int:
        home, file, digest = self.home, self.file, self.plan.digest
        assert home is not None
        assert file is not None
        plan = None if self.committed else self._plan_json()
        self.committed = True

        def publish(chunks: Committed) -> None:
            if home.synced:
                file.sync()
            worn = home.wear.before + file.written_bytes
            home.publish(Commit(digest, file.path.name, moment, chunks, worn), plan)
            self.committed_step = moment.step

        return self._streaming().publish(publish)

    def flush(self) -> None:
        """Wait until all that was begun is written and published."""
        if self._engine is not None:
            self._engine.drain()

    def read(self, chunk: int) -> Fields | None:
        """The states of a chunk, for looking only; None where it was never written.

        Nothing may be under way.

        Raises:
            CorruptRecordError, StorageError: the record cannot be read.
        """
        if chunk < self.room.pinned:
            return self._pinned[chunk]
        return self._fetch(chunk, self.room.layouts[chunk].needed)

    def read_record(self, chunk: int) -> Fields | None:
        """A chunk's record in the file, all of it; None where there is none."""
        return self._fetch(chunk, [part.name for part in self.room.layouts[chunk].fields])

    def dtype_of(self, dtype: str) -> torch.dtype:
        """The dtype of the states of parameters of a dtype."""
        found: torch.dtype = getattr(torch, state_dtype(dtype, masters=self.wishes.masters))
        return found

    def stop(self) -> None:
        """Finish what was begun, end the threads and free the ring; `read` still works."""
        if self._engine is not None:
            try:
                self._engine.drain()
            finally:
                self._engine.close()
                self._engine = None
                del self._ring

    def close(self, *, remove: bool = False) -> None:
        """Finish what was begun and close the file, even if something failed.

        Raises:
            CarouselError: what a thread met.
        """
        try:
            self.stop()
        finally:
            if self.file is not None:
                if remove:
                    self.file.remove()
                self.file.close()

    def _streaming(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def _fetch(self, chunk: int, names: Sequence[str]) -> Fields | None:
        place, step = self.places.newest(chunk)
        if place < 0 or self.file is None:
            return None
        layout = self.room.layouts[chunk]
        record = anonymous(layout.nbytes)
        begin = min(part.offset for part in layout.fields if part.name in names)
        self.file.read(chunk, place, record, begin)
        layout.check(record, self.plan.digest, chunk, step, names=names)
        return fields_of(record, layout)

    def _pin(self) -> list[Fields]:
        """Zeros, or what was committed, of the chunks that stay in RAM."""
        layouts = self.room.layouts[: self.room.pinned]
        slab = anonymous(sum(-(-layout.resident_bytes // 64) * 64 for layout in layouts))
        pinned: list[Fields] = []
        start = 0
        for number, layout in enumerate(layouts):
            fields: Fields = {}
            for part in layout.fields:
                if part.offset >= layout.read_from:
                    area = torch.from_numpy(slab[start : start + part.nbytes])
                    fields[part.name] = area.view(getattr(torch, layout.dtype))
                    start += part.nbytes
            start = -(-start // 64) * 64
            stored = self._fetch(number, layout.needed)
            for name, value in (stored or {}).items():
                if name in fields:
                    fields[name].copy_(value)
            pinned.append(fields)
        return pinned

    def _plan_json(self) -> dict[str, object]:
        options = {"masters": self.wishes.masters}
        return {**self.plan.to_json(), "options": options}
