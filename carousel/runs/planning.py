"""Sizes of a run before it is started: memory, storage, swaps, and what to make of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from carousel.data import list_benchmarks
from carousel.data.holdout import TEST_FRACTION
from carousel.errors import BadInputError
from carousel.memory.schema import Schema
from carousel.memory.sizes import MemoryPlan, most_swaps, plan_memory
from carousel.report.words import bytes_text, count_text
from carousel.storage import Budget, FieldSpec, RecordBatch, parse_budget
from carousel.storage.codec import encode_batch
from carousel.storage.lmdb.pages import LIVE_SHARE, check_budget_bytes, data_bytes, record_costs
from carousel.storage.record import numpy_dtype

__all__ = ["OWN_CLASSES", "OWN_SAMPLES", "PlannedStream", "plan_run", "stream_of"]

OWN_SAMPLES, OWN_CLASSES = 50_000, 10
"""How many samples of the user's own there are, unless told."""

_PAGE = 4096
_SLACK = 40 * _PAGE
_WORKING_BYTES = 4 << 20
_WORKING_SHARE = 2.5
"""A file is larger than its records by pages in the making: at most this much, or this share of
the records where they are few (measured)."""
_THINNED = 0.62
"""Share of a full budget that small records take: where some leave, leaves of the tree stay half
empty (measured; records on pages of their own leave none)."""

_TESTED = dict.fromkeys(
    ("split-mnist", "split-cifar10", "split-cifar100", "split-tiny-imagenet"), 10_000
)
"""Samples of the benchmarks that come with a test set; others hold a share out."""
_LADDER: tuple[int | str, ...] = (200, 500, 2000, "1MiB", "16MiB", "64MiB")


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """What is to be learned: shape and type of a sample, how many, of how many classes.

    Only samples to learn count: those to test on are never stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    samples: int
    classes: int


def stream_of(
    benchmark: str,
    shape: str | None = None,
    dtype: str | None = None,
    samples: int | None = None,
    classes: int | None = None,
) -> PlannedStream:
    """A benchmark, or samples of the user's own when a shape is given.

    Raises:
        BadInputError: the benchmark or the dtype is unknown, the shape is none, or the samples
            are described without their shape.
    """
    own = {"dtype": dtype, "samples": samples, "classes": classes}
    if shape is None:
        for name, value in own.items():
            if value is not None:
                raise BadInputError(f"--{name} is given without --shape", fix="give both")
        return _benchmark(benchmark)
    return _own(shape, dtype or "uint8", samples or OWN_SAMPLES, classes or OWN_CLASSES)


def _benchmark(name: str) -> PlannedStream:
    for info in list_benchmarks():
        if info.name == name:
            tested = _TESTED.get(name, round(info.samples * TEST_FRACTION - 0.01))
            learned = info.samples - tested
            return PlannedStream(name, info.shape, "uint8", learned, info.n_classes)
    known = ", ".join(info.name for info in list_benchmarks())
    raise BadInputError(
        f"benchmark {name!r} is unknown", fix=f"use one of {known}, or give --shape"
    )


def _own(shape: str, dtype: str, samples: int, classes: int) -> PlannedStream:
    try:
        sizes = tuple(int(size) for size in shape.lower().split("x"))
    except ValueError:
        sizes = ()
    if len(sizes) != 3 or min(sizes) < 1:
        raise BadInputError(
            f"shape is {shape!r}", fix="write channels, height and width as in 3x32x32"
        )
    try:
        numpy_dtype(dtype)
    except TypeError:
        raise BadInputError(f"dtype is {dtype!r}", fix="use a numpy dtype, such as uint8") from None
    return PlannedStream("your samples", sizes, dtype, samples, classes)


def plan_run(
    stream: PlannedStream,
    *,
    memory_sizes: Sequence[int | str] | None,
    storage: Path,
    storage_budget: int | str | None,
    swap_ratio: float,
    batch_size_mem: int,
) -> dict[str, Any]:
    """All sizes as plain values, and advice as sentences.

    Args:
        stream: what is to be learned.
        memory_sizes: memories to compare; None for a usual choice.
        storage: where the storage will be; it need not exist.
        storage_budget: as `carousel train` takes it.
        swap_ratio: share of a replayed batch to swap.
        batch_size_mem: replayed samples a step.

    Raises:
        BadInputError: a size cannot be used.
    """
    layout = (FieldSpec("x", stream.dtype, stream.shape),)
    schema = Schema(layout)
    swaps = ceil(swap_ratio * batch_size_mem)
    record = _record_bytes(layout)
    cost = int(record_costs(np.array([record]), _PAGE)[0])
    memories = [
        _memory_row(size, plan, stream)
        for size, plan in _memory_plans(memory_sizes, schema, most_swaps(swap_ratio), stream)
    ]
    sample = {
        "shape": list(stream.shape),
        "dtype": stream.dtype,
        "ram_bytes": schema.nbytes,
        "record_bytes": record,
        "disk_bytes": cost,
        "space_amplification": cost / schema.nbytes,
    }
    disk = _storage_row(stream, cost, storage, storage_budget)
    return {
        "name": stream.name,
        "samples": stream.samples,
        "classes": stream.classes,
        "sample": sample,
        "memories": memories,
        "storage": disk,
        "swaps": {"a_step": swaps, "batch": batch_size_mem, "ratio": swap_ratio},
        "advice": _advice(stream, sample, memories, disk, swaps),
    }


def _record_bytes(layout: tuple[FieldSpec, ...]) -> int:
    spec = layout[0]
    one = np.zeros(1, np.int64)
    value = np.zeros((1, *spec.shape), numpy_dtype(spec.dtype))
    return len(encode_batch(RecordBatch(one, one, one, layout, {spec.name: value}))[0])


def _memory_plans(
    sizes: Sequence[int | str] | None, schema: Schema, swaps: int, stream: PlannedStream
) -> list[tuple[int | str, MemoryPlan]]:
    if sizes:
        return [(size, plan_memory(size, schema, swaps_per_step=swaps)) for size in sizes]
    plans: dict[int, tuple[int | str, MemoryPlan]] = {}
    for size in (2 * stream.classes, *_LADDER):
        try:
            plan = plan_memory(size, schema, swaps_per_step=swaps)
        except BadInputError:
            continue  # too little for one sample, or more than this machine has
        if plan.slots <= stream.samples:
            plans[plan.slots] = (size, plan)
    return [plans[slots] for slots in sorted(plans)]


def _memory_row(size: int | str, plan: MemoryPlan, stream: PlannedStream) -> dict[str, Any]:
    return {
        "memory_size": size,
        "slots": plan.slots,
        "spares": plan.spares,
        "ram_bytes": plan.nbytes,
        "slots_a_class": plan.slots / stream.classes,
        "share_of_stream": plan.slots / stream.samples,
    }


def _storage_row(
    stream: PlannedStream, cost: int, storage: Path, budget: int | str | None
) -> dict[str, Any]:
    existing = storage.resolve()
    while not existing.exists():
        existing = existing.parent
    limits = parse_budget(budget).resolve(storage)
    check_budget_bytes(limits.max_bytes)
    kept = None if limits.unlimited else _kept(stream.samples, cost, limits)
    live = (stream.samples if kept is None else kept) * cost
    file = live + int(min(_WORKING_BYTES, _WORKING_SHARE * live))
    return {
        "path": str(storage.resolve()),
        "stream_bytes": stream.samples * cost,
        "file_bytes": file if limits.max_bytes is None else min(file, limits.max_bytes),
        "free_bytes": shutil.disk_usage(existing).free,
        "budget_samples": kept,
        "share_of_stream": None if kept is None else kept / stream.samples,
    }


def _kept(samples: int, cost: int, limits: Budget) -> int:
    """How many samples of the stream a budget keeps; rather too few than too many."""
    kept = samples if limits.max_records is None else min(samples, limits.max_records)
    size = data_bytes(limits.max_bytes)
    if size is None:
        return kept
    room = int(size * LIVE_SHARE) - _SLACK
    if kept * cost <= room:
        return kept
    return int(room * (_THINNED if cost < _PAGE else 1)) // cost


def _advice(
    stream: PlannedStream,
    sample: dict[str, Any],
    memories: list[dict[str, Any]],
    disk: dict[str, Any],
    swaps: int,
) -> list[str]:
    lines = [
        f"{bytes_text(swaps * sample['disk_bytes'])} are read from storage a step: at 100 steps a "
        f"second, {bytes_text(100 * swaps * sample['disk_bytes'])} a second."
    ]
    if min(row["slots_a_class"] for row in memories) < 2:
        lines.append(
            f"A memory below 2 samples a class ({2 * stream.classes} here) leaves classes out or "
            "the gate without a choice."
        )
    if sample["space_amplification"] > 1.5:
        lines.append(
            "Samples take much more on disk than in RAM because records fill whole pages of 4 KiB "
            "or carry a header: this is the price of small samples."
        )
    kept = disk["budget_samples"]
    if kept == stream.samples:
        lines.append("The storage budget suffices: every sample is kept.")
    elif kept is not None:
        lines.append(
            f"The storage budget keeps about {count_text(kept)} of "
            f"{count_text(stream.samples)} samples, "
            f"about {kept // stream.classes} a class; the rest is thinned out evenly."
        )
    needed = disk["file_bytes"]
    if needed > disk["free_bytes"]:
        lines.append(
            f"The disk has {bytes_text(disk['free_bytes'])} free and {bytes_text(needed)} are "
            "needed: give --storage-budget 50% or another --storage."
        )
    return lines
