"""`Carousel`: a small memory in RAM and a large one on disk, and samples riding between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.errors import BadInputError, CheckpointError
from carousel.memory import seeds
from carousel.memory.admission import Admission, SlotState, make_admission
from carousel.memory.counters import SwapCounters
from carousel.memory.distinct import DistinctIds
from carousel.memory.gate import Gate, GateBatch, make_gate, parse_ratio
from carousel.memory.intake import Intake, Labels, SampleBatch, columns
from carousel.memory.reader import schema_of
from carousel.memory.replacement import Replacement, make_replacement
from carousel.memory.replay import Replay, ReplayBuffers
from carousel.memory.saver import BackgroundSaver
from carousel.memory.schema import META_KEY, FieldValue, Schema, check_store_schema
from carousel.memory.sizes import parse_memory_size, plan_memory
from carousel.memory.slab import Slab
from carousel.memory.snapshot import Restorer, slab_state
from carousel.memory.stats import CarouselStats
from carousel.memory.swap import SwapEngine
from carousel.storage.budget import Budget, parse_budget
from carousel.storage.tier import Durability, StorageTier

__all__ = ["Carousel"]

Ints = npt.NDArray[np.int64]
Fetch = Callable[[Ints], dict[str, Tensor]]
P = ParamSpec("P")
R = TypeVar("R")

_FETCH_ROWS = 256
_FORMAT = 1


def _timed(
    method: Callable[Concatenate[Carousel, P], R],
) -> Callable[Concatenate[Carousel, P], R]:
    """Adds the time of a call to `CarouselStats.manager_seconds`."""

    @functools.wraps(method)
    def call(self: Carousel, *args: P.args, **kwargs: P.kwargs) -> R:
        start = time.perf_counter_ns()
        try:
            return method(self, *args, **kwargs)
        finally:
            self._manager_ns += time.perf_counter_ns() - start

    return call


class Carousel:
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
        admission: which samples get a slot: ``"class-balanced"``, ``"reservoir"``, ``"ring"``, or
            an `Admission`.
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
        ...     memory.admit(ids, y, fetch=lambda rows: {"x": x[rows]})
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
        parse_memory_size(memory_size)
        self._memory_size = memory_size
        self._ratio = parse_ratio(swap_ratio)
        self._gate = make_gate(gate, self._ratio)
        self._replacement = make_replacement(replacement)
        self._sync = sync
        self._swaps = swap and self._ratio > 0
        self._publish_every = _checked_publish_every(publish_every)
        seed = seeds.fresh_seed() if seed is None else seed
        self._rngs = {name: seeds.generator(seed, name) for name in ("gate", "draw", "sample")}
        self._admission = make_admission(admission, seeds.generator(seed, "admission"))
        self._owns_tier = not isinstance(storage, StorageTier)
        self._tier = _open(storage, storage_budget, durability, sync, seed)
        self._intake = Intake(self._tier, commit_each=sync)
        self._saver = BackgroundSaver(self._save_batch)
        self._slab: Slab | None = None
        self._engine: SwapEngine | None = None
        self._buffers: ReplayBuffers | None = None
        self._distinct = DistinctIds()
        self._manager_ns = 0
        self._restore_losses = 0
        self._closed = False
        stored = self._tier.get_meta(META_KEY)
        if stored is not None:
            self._build(Schema.from_json(stored))

    # -- what arrives ------------------------------------------------------------------------

    def save(
        self, ids: Ints | None, labels: Labels, tasks: Labels | None = None, **fields: FieldValue
    ) -> Ints:
        """Queue samples to storage; blocks while its queue is full.

        Args:
            ids: (n,) ids from `reserve`, None for fresh ones. Saving an id again is fine.
            labels: (n,) integers of at least 0.
            tasks: (n,) integers, None for all 0.
            **fields: tensors or arrays (n, *shape), or n encoded images; ``x=...`` by custom.

        Returns:
            (n,) the ids.

        Raises:
            BadInputError: the samples are not like the first ones, or hold NaN.
        """
        return self._save_batch(SampleBatch(ids, labels, tasks, fields))

    def save_in_background(self, batches: Iterable[SampleBatch]) -> None:
        """Save batches from a thread of their own; `end_experience` waits for them.

        In sync mode they are saved before this returns.
        """
        rest = iter(batches)
        first = next(rest, None)
        if first is None:
            return
        self._ensure_schema(first.fields)
        ahead: Iterator[SampleBatch] = chain([first], rest)
        if self._sync:
            for batch in ahead:
                self._save_batch(batch)
        else:
            self._saver.start(ahead)

    def reserve(self, run: str, experience: int, count: int) -> int:
        """The first of `count` consecutive ids for the samples of an experience.

        The same run and experience get the same ids again, also after a restart.

        Raises:
            BadInputError: they were reserved with another count.
        """
        return self._intake.reserve(run, experience, count)

    def admit(
        self, ids: Ints, labels: Labels, tasks: Labels | None = None, *, fetch: Fetch
    ) -> Ints:
        """Let the admission rule give slots to some of n samples.

        Args:
            ids: (n,) ids that the samples were saved under.
            labels: (n,) integers of at least 0.
            tasks: (n,) integers, None for all 0.
            fetch: gives the fields of the (k,) rows that were admitted, at most 256 at a time.

        Returns:
            (k,) the ids that were admitted.
        """
        ids, classes, task_labels = columns(ids, labels, tasks)
        if len(ids) == 0:
            return ids
        if self._slab is None:
            self._ensure_schema(fetch(np.zeros(1, np.int64)))
        assert self._slab is not None
        assert self._engine is not None
        slab = self._slab
        self._intake.present(ids)
        state = SlotState(slab.labels, slab.ids, slab.tasks, slab.capacity)
        plan = self._admission.plan(state, ids, classes, task_labels)
        self._engine.save_unstored(np.concatenate([plan.freed, plan.slots]))
        slab.release(plan.freed)
        for start in range(0, len(plan), _FETCH_ROWS):
            rows, slots = (part[start : start + _FETCH_ROWS] for part in (plan.rows, plan.slots))
            fields = fetch(rows)
            slab.schema.validate(fields)
            slab.write(slots, fields, ids[rows], classes[rows], task_labels[rows])
        return ids[plan.rows]

    # -- the training loop -------------------------------------------------------------------

    @property
    def filled(self) -> int:
        """Slots that hold a sample."""
        return self._slab.filled if self._slab else 0

    def filled_slots(self) -> Ints:
        """(filled,) the slots that hold a sample, ascending; a fresh array."""
        return np.flatnonzero(self._slab.ids >= 0) if self._slab else np.empty(0, np.int64)

    @_timed
    def sample(self, n: int) -> Replay:
        """min(n, filled) samples, uniform without replacement."""
        slab = self._slab
        if slab is None or slab.filled == 0:
            return Replay.empty()
        whole = slab.filled == slab.slots
        pool = slab.slots if whole else self.filled_slots()
        count = min(n, slab.filled)
        slots = self._rngs["sample"].choice(pool, count, replace=False, shuffle=False)
        return self._gather(slots)

    @_timed
    def sample_slots(self, slots: Ints) -> Replay:
        """The samples of (n,) filled slots, in this order, for schedules of one's own."""
        return self._gather(slots)

    @_timed
    def observe(self, replay: Replay, logits: Tensor, losses: Tensor | None = None) -> None:
        """Show the forward pass of a replayed batch; the gate picks rows, and they may leave.

        Args:
            replay: from `sample`, after the last `step`.
            logits: (n, C) of the replayed rows, on any device.
            losses: (n,) loss of each row, for gates that rank by it.

        Raises:
            BadInputError: the logits are of another number of rows.
        """
        if len(logits) != len(replay):
            raise BadInputError(
                f"logits have {len(logits)} rows for {len(replay)} replayed samples",
                fix="pass the rows of the replayed samples only",
            )
        if self._engine is None or not self._swaps or len(replay) == 0:
            return
        batch = GateBatch(logits.detach(), replay.labels, self._ratio, self._rngs["gate"], losses)
        rows = self._gate(batch)
        self._engine.request(replay.slots[rows], replay.generations[rows])

    @_timed
    def step(self) -> None:
        """The end of a training step: finished swaps become visible."""
        if self._engine is not None:
            self._engine.step()

    def end_experience(self) -> None:
        """Wait for swaps and saves, and commit what was saved.

        Raises:
            StorageError: samples could not be saved, for another reason than room.
        """
        self._saver.wait()
        if self._engine is not None:
            self._engine.drain()
        self._intake.flush()

    def flush(self, timeout: float | None = None) -> None:
        """`end_experience`, and raise what the swap worker met.

        Raises:
            WorkerError: the worker met an unexpected error.
            TimeoutError: not done within `timeout` seconds (each of the three waits).
        """
        self._saver.wait(timeout)
        if self._engine is not None:
            self._engine.flush(timeout)
        self._intake.flush(timeout)

    def close(self) -> None:
        """Save what is queued, cancel what is in flight, and stop; calling it again is fine.

        Raises:
            WorkerError: the worker met an unexpected error; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._saver.wait()
        finally:
            try:
                if self._engine is not None:
                    self._engine.close()
            finally:
                self._intake.flush()
                if self._owns_tier:
                    self._tier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- what it knows -----------------------------------------------------------------------

    @property
    def tier(self) -> StorageTier:
        """The storage."""
        return self._tier

    @property
    def schema(self) -> Schema | None:
        """Fields of a sample; None before the first one."""
        return self._slab.schema if self._slab else None

    def stats(self) -> CarouselStats:
        """Counters and sizes now."""
        storage = self._tier.stats()
        if self._slab is None or self._engine is None or self._buffers is None:
            return CarouselStats(SwapCounters(), storage, storage_full=self._intake.storage_full)
        return CarouselStats(
            swaps=self._engine.counters,
            storage=storage,
            ram_bytes=self._slab.nbytes + self._buffers.nbytes + self._distinct.nbytes,
            slots=self._slab.slots,
            spares=self._slab.spares,
            filled=self._slab.filled,
            distinct_samples_replayed=self._distinct.count,
            manager_seconds=self._manager_ns * 1e-9,
            staleness=tuple(self._engine.staleness.tolist()),
            written_back=self._engine.written_back,
            lost=self._engine.lost,
            ram_only=self._engine.ram_only,
            worker_failures=self._engine.worker_failures,
            storage_full=self._intake.storage_full,
            restore_losses=self._restore_losses,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on, as plain types and tensors.

        Samples that are committed are named by id only. Swaps in flight count as cancelled; in
        sync mode there are none after `step`, and a run that goes on from here repeats bit for
        bit.
        """
        state: dict[str, Any] = {
            "format": _FORMAT,
            "schema": None,
            "high_water": self._intake.high_water,
            "admission": self._admission.state_dict(),
            "rngs": {name: seeds.state_of(rng) for name, rng in self._rngs.items()},
            "distinct": self._distinct.state_dict(),
            "manager_ns": self._manager_ns,
            "restore_losses": self._restore_losses,
        }
        if self._slab is not None and self._engine is not None:
            state["schema"] = self._slab.schema.to_json()
            state["slots"] = slab_state(self._slab, self._tier)
            state["engine"] = self._engine.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; the storage must be the one it was made with.

        Records that came after the state are hidden from draws until they are saved again. A
        resident that storage cannot give back is replaced by another sample of its class where
        there is one, and counted in ``stats().restore_losses``.

        Raises:
            CheckpointError: the state is of another format, schema or memory size, or storage
                cannot be read.
        """
        if state.get("format") != _FORMAT:
            raise CheckpointError(f"memory state has format {state.get('format')!r}, not {_FORMAT}")
        self._intake.high_water = int(state["high_water"])
        self._tier.hide_from(self._intake.high_water)
        self._admission.load_state_dict(state["admission"])
        for name, rng in self._rngs.items():
            seeds.load_state(rng, state["rngs"][name])
        self._distinct.load_state_dict(state["distinct"])
        self._manager_ns = int(state["manager_ns"])
        self._restore_losses = int(state["restore_losses"])
        if state["schema"] is not None:
            self._restore(Schema.from_json(state["schema"]), state)

    # -- helpers -----------------------------------------------------------------------------

    def _ensure_schema(self, fields: dict[str, FieldValue]) -> Schema:
        if self._slab is None:
            self._build(schema_of(fields))
        assert self._slab is not None
        return self._slab.schema

    def _build(self, schema: Schema) -> None:
        per_step = 64 if self._swaps else 0
        plan = plan_memory(self._memory_size, schema, swaps_per_step=per_step)
        check_store_schema(self._tier, schema)
        self._slab = Slab(schema, plan.slots, plan.spares)
        self._engine = SwapEngine(
            self._slab,
            self._tier,
            self._replacement,
            rng=self._rngs["draw"],
            sync=self._sync,
            publish_every=self._publish_every,
        )
        self._buffers = ReplayBuffers(schema)

    def _restore(self, schema: Schema, state: dict[str, Any]) -> None:
        if self._engine is not None:
            self._engine.close()
        self._build(schema)
        assert self._slab is not None
        assert self._engine is not None
        self._engine.load_state_dict(state["engine"])
        restorer = Restorer(self._slab, self._tier, self._replacement, self._rngs["draw"])
        self._restore_losses += restorer.restore(state["slots"])

    def _save_batch(self, batch: SampleBatch) -> Ints:
        return self._intake.save(batch, self._ensure_schema(batch.fields))

    def _gather(self, slots: Ints) -> Replay:
        assert self._slab is not None
        assert self._buffers is not None
        replay = self._buffers.gather(self._slab, slots)
        self._distinct.add(replay.ids)
        return replay


def _open(
    storage: str | Path | StorageTier,
    budget: int | str | Budget | None,
    durability: Durability,
    sync: bool,
    seed: int,
) -> StorageTier:
    if isinstance(storage, StorageTier):
        if budget is not None:
            raise BadInputError(
                "storage_budget is given with an open tier", fix="give the budget to the tier"
            )
        return storage
    from carousel.storage import open_tier

    return open_tier(
        storage, budget=parse_budget(budget), durability=durability, sync=sync, seed=seed
    )


def _checked_publish_every(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise BadInputError(f"publish_every is {value}", fix="give 1 or more")
    return value
