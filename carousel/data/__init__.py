"""Streams of experiences from bundled, built, downloaded or own data.

The names below are imported when first used: listing benchmarks loads no torch.

Example:
    >>> from carousel.data import load_stream
    >>> stream = load_stream("split-digits")
    >>> len(stream.train), stream.n_classes, stream.input_shape
    (5, 10, (1, 8, 8))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carousel.data.benchmark import to_benchmark
    from carousel.data.dataset import ArrayDataset
    from carousel.data.registry import BenchmarkInfo, list_benchmarks, load_dataset, load_stream
    from carousel.data.scenarios import class_incremental, domain_incremental, make_stream
    from carousel.data.stream import OnlineExperience, Split, Stream, online
    from carousel.data.transform import ToModelInput

__all__ = [
    "ArrayDataset",
    "BenchmarkInfo",
    "OnlineExperience",
    "Split",
    "Stream",
    "ToModelInput",
    "class_incremental",
    "domain_incremental",
    "list_benchmarks",
    "load_dataset",
    "load_stream",
    "make_stream",
    "online",
    "to_benchmark",
]

_HOMES = {
    "ArrayDataset": "carousel.data.dataset",
    "BenchmarkInfo": "carousel.data.registry",
    "OnlineExperience": "carousel.data.stream",
    "Split": "carousel.data.stream",
    "Stream": "carousel.data.stream",
    "ToModelInput": "carousel.data.transform",
    "class_incremental": "carousel.data.scenarios",
    "domain_incremental": "carousel.data.scenarios",
    "list_benchmarks": "carousel.data.registry",
    "load_dataset": "carousel.data.registry",
    "load_stream": "carousel.data.registry",
    "make_stream": "carousel.data.scenarios",
    "online": "carousel.data.stream",
    "to_benchmark": "carousel.data.benchmark",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'carousel.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
