"""A strategy is built once before the run, on a storage in RAM: it refuses what it cannot use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from carousel.data import Stream
from carousel.errors import SchemaMismatchError
from carousel.memory.schema import Schema, stored_schema
from carousel.memory.sizes import most_swaps, plan_memory
from carousel.runs.config import TrainConfig
from carousel.storage import FieldSpec, MemoryTier, open_tier
from carousel.storage.creation import DATA
from carousel.strategies.facts import StreamFacts
from carousel.strategies.lean import LeanTemplate

__all__ = ["rehearse"]


def rehearse(
    build: Callable[[MemoryTier], Any], config: TrainConfig, stream: Stream, storage: Path | None
) -> None:
    """Refuse a stream, a memory or a storage that the strategy cannot work with.

    Args:
        build: makes the strategy on a storage.
        config: resolved settings.
        stream: to learn.
        storage: folder of the samples, only looked into; None if what it holds does not matter.

    Raises:
        BadInputError: names the value and the fix; nothing was written.
        SchemaMismatchError: the storage holds samples with other fields.
    """
    with MemoryTier() as tier:
        strategy = build(tier)
        try:
            _check(strategy, config, stream, storage)
        finally:
            if strategy.memory is not None:
                strategy.memory.close()


def _check(strategy: Any, config: TrainConfig, stream: Stream, storage: Path | None) -> None:
    # samples of a run tell which experience they are from to every method that wants to know
    facts = StreamFacts(stream.n_classes, stream.input_shape, stream.train[0].x.dtype, True)
    ours = isinstance(strategy, LeanTemplate)
    if strategy.memory is not None:
        fields = {"x": torch.empty(0, *facts.input_shape, dtype=facts.dtype)}
        schema = Schema.of(strategy.sample_fields(facts) if ours else fields)
        facts = replace(facts, slots=_slots(config, schema))
        if storage is not None:
            _check_stored(storage, schema, config.strategy)
    if ours:
        strategy.check_stream(facts)


def _slots(config: TrainConfig, schema: Schema) -> int:
    assert config.memory_size is not None
    swaps = most_swaps(config.swap_ratio, swap=not config.no_swap)
    return plan_memory(config.memory_size, schema, swaps_per_step=swaps).slots


def _check_stored(storage: Path, schema: Schema, strategy: str) -> None:
    if not (storage / DATA).is_file():
        return
    tier = open_tier(storage, readonly=True)
    try:
        stored = stored_schema(tier)
    finally:
        tier.close()
    if stored is None or stored == schema:
        return
    raise SchemaMismatchError(
        f"--storage {storage} holds samples with {stored}, and {strategy} on this benchmark "
        f"stores {schema}",
        fix=f"{_upgrade(storage, stored, schema)}empty it with `carousel forget {storage} --all`, "
        "or give --fresh or another --storage",
    )


def _upgrade(storage: Path, stored: Schema, schema: Schema) -> str:
    """The commands that add the fields that are missing; empty where that is not all."""
    count = len(stored.fields)
    if stored.fields != schema.fields[:count]:
        return ""
    flags = " ".join(f"--schema {_flag(spec)}" for spec in schema.fields[count:])
    return (
        f"upgrade a copy with `carousel export {storage} FILES` and `carousel import FILES NEW "
        f"{flags}` and give --storage NEW, "
    )


def _flag(spec: FieldSpec) -> str:
    return f"{spec.name}:{spec.dtype}:{'x'.join(map(str, spec.shape))}=0"
