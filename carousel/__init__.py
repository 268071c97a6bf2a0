"""Carousel: continual learning on devices with little memory.

Past samples live in a small RAM buffer and in a large store on disk; while training runs, an
asynchronous engine swaps them. The public names below are imported when first used, so that
``import carousel`` costs nothing: neither torch nor Avalanche is loaded by it.

Example:
    >>> import carousel
    >>> sorted(carousel.__all__)
    ['CarMPlugin', 'Carousel', 'CarouselError', 'ER', 'FileTier', 'LMDBTier', 'MemoryTier']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carousel.lazy import lazy_names

if TYPE_CHECKING:
    from carousel.errors import CarouselError
    from carousel.memory import Carousel
    from carousel.storage import FileTier, LMDBTier, MemoryTier
    from carousel.strategies import ER, CarMPlugin

__all__ = ["ER", "CarMPlugin", "Carousel", "CarouselError", "FileTier", "LMDBTier", "MemoryTier"]
__version__ = "0.1.0"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "errors": ("CarouselError",),
        "memory": ("Carousel",),
        "storage": ("FileTier", "LMDBTier", "MemoryTier"),
        "strategies": ("ER", "CarMPlugin"),
    },
)
