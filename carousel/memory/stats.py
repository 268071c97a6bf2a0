"""What a carousel reports about itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from carousel.memory.counters import SwapCounters
from carousel.storage.tier import TierStats

__all__ = ["CarouselStats"]


@dataclass(frozen=True, slots=True)
class CarouselStats:
    """Counters and sizes of a carousel now.

    Args:
        swaps: requests by outcome.
        storage: the tier's own counters.
        ram_bytes: slots, spares, columns and batch buffers.
        slots: slots in use; fewer than asked for while the machine is short of memory.
        spares: rows beyond the slots.
        filled: slots that hold a sample.
        distinct_samples_replayed: different ids that `Carousel.sample` has given out.
        manager_seconds: wall time of the training thread in `sample`, `observe` and `step`.
        staleness: swaps by the number of steps from request to publication; the last bin holds
            all that took longer.
        written_back: residents saved again because storage had evicted them.
        lost: residents that left and that storage had no room for.
        ram_only: storage is taken to be broken, and nothing is swapped.
        worker_failures: unexpected errors that the worker survived.
        storage_full: storage refused samples for want of room.
        restore_losses: residents that a checkpoint named and storage could not give back.
    """

    swaps: SwapCounters
    storage: TierStats
    ram_bytes: int = 0
    slots: int = 0
    spares: int = 0
    filled: int = 0
    distinct_samples_replayed: int = 0
    manager_seconds: float = 0.0
    staleness: tuple[int, ...] = field(default=())
    written_back: int = 0
    lost: int = 0
    ram_only: bool = False
    worker_failures: int = 0
    storage_full: bool = False
    restore_losses: int = 0
