"""`Carousel`: a small memory in RAM and a large one on disk, and samples riding between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.at_exit import close_at_exit
from carousel.errors import BadInputError
from carousel.memory.admission import Admission
from carousel.memory.core import Core, Fetch
from carousel.memory.counters import SwapCounters
from carousel.memory.curated import Curated
from carousel.memory.gate import Gate
from carousel.memory.id_journal import IdJournal
from carousel.memory.intake import Intake, Labels, SampleBatch, columns
from carousel.memory.lifetime import while_open
from carousel.memory.replacement import Replacement
from carousel.memory.replay import Replay
from carousel.memory.saver import BackgroundSaver
from carousel.memory.schema import FieldValue, Schema, stored_schema
from carousel.memory.settings import Settings, open_storage
from carousel.memory.snapshot import check_state, check_storage
from carousel.memory.stats import CarouselStats
from carousel.memory.timing import timed
from carousel.storage.budget import Budget
from carousel.storage.maintenance import forget
from carousel.storage.tier import Durability, StorageTier

__all__ = ["Carousel"]

Ints = npt.NDArray[np.int64]
Named = Collection[int] | Ints

_FORMAT = 1


class Carousel(Curated):
    """The episodic memory: slots in RAM, all samples in storage, and swaps between the two.

    A training loop saves what arrives, replays `sample`, shows the logits to `observe`, and calls
    `step` after every optimizer step; at the end of an experience `end_experience`, then `admit`
    to give the new samples their slots. After Lee et al., "CarM: Hierarchical Episodic Memory for
    Continual Learning" (DAC 2022). Use it from one thread, and close it (it is a context
    manager).

    Args:
        memory_size: slots, or bytes such as ``"64MiB"`` for slots, spares and index together.
        storage: folder of the storage, created when absent, or an open tier (which the caller
            closes).
        swap_ratio: share of the replayed rows that leave after each step, 0 to 1.
        gate: which rows leave: ``"balanced"``, ``"score"``, ``"entropy"``, ``"loss"``,
            ``"random"``, ``"all"``, or a callable.
        admission: which samples get a slot: ``"class-balanced"``, ``"reservoir"``, ``"greedy"``,
            ``"ring"``, or an `Admission`.
        replacement: what comes in: ``"uniform"`` within the class, or a `Replacement`.
        durability: what a saved sample survives: ``"durable"``, ``"bounded"``, ``"process"`` or
            ``"ephemeral"``.
        storage_budget: most records (5000), bytes (``"1GiB"``) or share of the free disk
            (``"50%"``) of the storage.
        sync: swap inline at `step`, bit for bit repeatable with a seed.
        seed: of all chance in here; None takes a fresh one.
        publish_every: steps between publications; None chooses by the memory's size.
        pressure: give slots back while the machine is short of memory; not in sync mode.
        swap: False keeps and saves samples but never swaps.

    Raises:
        BadInputError: an argument cannot be used; nothing was opened.
        StorageError: the storage cannot be opened.

    Example:
        >>> import tempfile, torch
        >>> with Carousel(4, tempfile.mkdtemp(), seed=0) as memory:
        ...     x, y = torch.arange(6.0).reshape(6, 1), torch.zeros(6, dtype=torch.int64)
        ...     ids = memory.save(None, y, x=x)
        ...     admitted = memory.admit(ids, y, fetch=lambda rows: {"x": x[rows]})
        ...     len(memory.sample(32))
        4
    """

    def __init__(
        self,
        memory_size: int | str,
        storage: str | Path | StorageTier,
        *,
        swap_ratio: float | str = 0.5,
        gate: str | Gate = "balanced",
        admission: str | Admission = "class-balanced",
        replacement: str | Replacement = "uniform",
        durability: Durability = "bounded",
        storage_budget: int | str | Budget | None = None,
        sync: bool = False,
        seed: int | None = None,
        publish_every: int | None = None,
        pressure: bool = False,
        swap: bool = True,
    ) -> None:
        self._settings = Settings.checked(
            memory_size=memory_size,
            swap_ratio=swap_ratio,
            gate=gate,
            admission=admission,
            replacement=replacement,
            sync=sync,
            seed=seed,
            publish_every=publish_every,
            pressure=pressure,
            swap=swap,
        )
        self._owns_tier = not isinstance(storage, StorageTier)
        self._tier = open_storage(
            storage,
            budget=storage_budget,
            durability=durability,
            sync=sync,
            seed=self._settings.seed,
        )
        self._intake = Intake(self._tier, commit_each=sync)
        self._saver = BackgroundSaver(self._save_batch)
        self._restore_losses = 0
        self.manager_ns = 0
        stored = stored_schema(self._tier)
        if stored is not None:
            try:
                self._core = self._build(stored)
            except BaseException:
                self.close()
                raise
        close_at_exit(self)

    @while_open
    def save(
        self, /, ids: Ints | None, labels: Labels, tasks: Labels | None = None, **fields: FieldValue
    ) -> Ints:
        """Queue samples to storage; blocks while its queue is full. Returns their ids, (n,).

        Args:
            ids: (n,) ids from `reserve`, None for fresh ones. Saving an id again is fine.
            labels: (n,) integers of at least 0.
            tasks: (n,) integers, None for all 0.
            **fields: tensors or arrays (n, *shape), or n encoded images; ``x=...`` by custom.

        Raises:
            BadInputError: the samples are not like the first ones, or hold NaN.
        """
        return self._save_batch(SampleBatch(ids, labels, tasks, fields))

    def save_in_background(self, batches: Iterable[SampleBatch]) -> None:
        """Save batches from a thread of their own; `end_experience` waits for them.

        That thread reads all but the first batch. In sync mode all are saved when this returns.
        """
        rest = iter(batches)
        if (first := next(rest, None)) is None:
            return
        self._core_for(first.fields)
        self._saver.start(chain([first], rest))
        if self._settings.sync:
            self._saver.wait()

    @while_open
    def reserve(self, run: str, experience: int, count: int) -> int:
        """The first of `count` consecutive ids for the samples of an experience.

        The same run and experience get the same ids again, also after a restart; with another
        count that is a `BadInputError`.
        """
        return IdJournal(self._tier).reserve(run, experience, count)

    @while_open
    def admit(
        self, ids: Ints, labels: Labels, tasks: Labels | None = None, *, fetch: Fetch
    ) -> Ints:
        """Let the admission rule give slots to some of n samples; returns their ids, (k,).

        Args:
            ids: (n,) ids that the samples were saved under.
            labels: (n,) integers of at least 0.
            tasks: (n,) integers, None for all 0.
            fetch: gives the fields of the (k,) rows that were admitted, at most 256 at a time.
        """
        ids, classes, task_labels = columns(ids, labels, tasks)
        if len(ids) == 0:
            return ids
        core = self._core or self._core_for(fetch(np.zeros(1, np.int64)))
        self._intake.present(ids)
        return core.admit(self._settings.admission, ids, classes, task_labels, fetch)

    @property
    def filled(self) -> int:
        """Slots that hold a sample."""
        return self._core.slab.filled if self._core else 0

    @timed
    def sample(self, n: int) -> Replay:
        """min(n, filled) samples, uniform without replacement."""
        if self._core is None:
            return Replay.empty()
        return self._core.gather(self._core.draw_slots(n, self._settings.rngs["sample"]))

    @timed
    def sample_slots(self, slots: Ints, out: Mapping[str, Tensor] | None = None) -> Replay:
        """The samples of (n,) filled slots, in this order, for schedules of one's own.

        Args:
            slots: (n,) of `filled_slots`.
            out: per field a CPU tensor (n, *shape) to gather into, such as the end of a batch;
                by default buffers that are used again by the second call that follows.
        """
        return self._core.gather(slots, out) if self._core else Replay.empty()

    @timed
    def observe(self, replay: Replay, logits: Tensor, losses: Tensor | None = None) -> None:
        """Show the forward pass of a replayed batch; the gate picks rows, and they may leave.

        Best called right before the backward pass, in whose time the worker reads.

        Args:
            replay: from `sample`, after the last `step`.
            logits: (n, C) of the replayed rows, on any device.
            losses: (n,) loss of each row, for gates that rank by it.

        Raises:
            BadInputError: the logits are of another shape or number of rows.
        """
        if logits.ndim != 2 or logits.shape[0] != len(replay):
            raise BadInputError(
                f"logits have shape {tuple(logits.shape)} for {len(replay)} replayed samples",
                fix="pass (n, classes), the rows of the replayed samples only",
            )
        if self._core is None or not self._settings.swap or len(replay) == 0:
            return
        self._core.ask(replay, *self._settings.judge(logits, replay.labels, losses))

    @timed
    def step(self) -> None:
        """The end of a training step: finished swaps become visible."""
        if self._core is not None:
            self._core.engine.step()
            if self._settings.watch is not None:
                self._core.make_room(self._settings.watch, self._settings.admission)

    def forget(self, *, ids: Named = (), labels: Named = (), tasks: Named = ()) -> int:
        """Remove samples from RAM and storage for good; returns how many storage held.

        Their slots stay empty until the next admission, they do not come back when presented
        again, and `carousel.storage.maintenance.compact` takes their bytes from the files.
        """
        self.end_experience()
        removed = forget(self._tier, ids=ids, labels=labels, tasks=tasks)
        if self._core is not None:
            self._core.slab.forget(ids, labels, tasks)
        return removed

    def end_experience(self) -> None:
        """Wait for swaps and saves, and commit what was saved.

        Raises:
            StorageError: samples could not be saved, for another reason than room.
        """
        self._settle()

    def flush(self, timeout: float | None = None) -> None:
        """`end_experience`, and raise what the swap worker met.

        Raises:
            WorkerError: the worker met an unexpected error.
            TimeoutError: not done within `timeout` seconds (each of the three waits).
        """
        self._saver.wait(timeout)
        if self._core is not None:
            self._core.engine.flush(timeout)
        self._intake.flush(timeout)

    def close(self) -> None:
        """Save what is queued, cancel what is in flight, and stop; calling it again is fine.

        Raises:
            WorkerError: the worker met an unexpected error; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        with ExitStack() as closing:  # each part is closed, whatever the others raise
            if self._owns_tier:
                closing.callback(self._tier.close)
            closing.callback(self._intake.flush)
            if self._core is not None:
                closing.callback(self._core.engine.close)
            closing.callback(self._saver.wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tier(self) -> StorageTier:
        """The storage."""
        return self._tier

    @property
    def schema(self) -> Schema | None:
        """Fields of a sample; None before the first one."""
        return self._core.slab.schema if self._core else None

    def stats(self) -> CarouselStats:
        """Counters and sizes now."""
        storage, full = self._tier.stats(), self._intake.storage_full
        if self._core is None:
            return CarouselStats(SwapCounters(), storage, storage_full=full)
        known = self._core.stats(storage)
        return replace(
            known,
            manager_seconds=self.manager_ns * 1e-9,
            storage_full=full or known.storage_full,
            restore_losses=self._restore_losses,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on, as plain types and tensors.

        Samples that are committed are named by id only. Swaps in flight count as cancelled; in
        sync mode there are none after `step`, and a run that goes on from here repeats bit for
        bit.
        """
        core = self._core
        return {
            "format": _FORMAT,
            "storage": self._tier.identity,
            "high_water": self._intake.high_water,
            "capacity": self._ceiling,
            **self._settings.state_dict(),
            "manager_ns": self.manager_ns,
            "restore_losses": self._restore_losses,
            "schema": core and core.slab.schema.to_json(),
            "core": core and core.state_dict(self._tier),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; the storage must be the one it was made with, or a copy.

        Records that came after the state are hidden from draws until they are saved again. A
        resident that storage cannot give back is replaced by another sample of its class where
        there is one, and counted in ``stats().restore_losses``.

        Raises:
            CheckpointError: the format or memory size is another, or storage cannot be read.
            BadInputError: the storage is another one, of another schema, or lost all samples.
        """
        check_state(state, _FORMAT)
        core = None if state["schema"] is None else self._build(Schema.from_json(state["schema"]))
        if core is not None:
            core.check(state["core"])
        check_storage(self._tier, state)
        self._restore_losses = int(state["restore_losses"])
        self._intake.high_water = int(state["high_water"])
        self._tier.hide_from(self._intake.high_water)
        if core is not None:
            self._restore(core, state["core"])
        self._ceiling = state["capacity"]
        if self._core is not None:
            self._apply_ceiling(self._core)
        self._settings.load_state_dict(state)
        self.manager_ns = int(state["manager_ns"])

    def _restore(self, core: Core, state: dict[str, Any]) -> None:
        if self._core is not None:  # its worker draws from the generators that are restored here
            self._core.engine.close()
        chance = self._settings.replacement, self._settings.rngs["draw"]
        self._restore_losses += core.load_state_dict(state, self._tier, *chance)
        self._core = core

    def _save_batch(self, batch: SampleBatch) -> Ints:
        return self._intake.save(batch, self._core_for(batch.fields).slab.schema)
