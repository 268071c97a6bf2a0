"""Streams of experiences from bundled, built, downloaded or own data.

The names below are imported when first used: listing benchmarks loads no torch.

Example:
    >>> from carousel.data import load_stream
    >>> stream = load_stream("split-digits")
    >>> len(stream.train), stream.n_classes, stream.input_shape
    (5, 10, (1, 8, 8))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carousel.lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "benchmark": ("to_benchmark",),
        "dataset": ("ArrayDataset",),
        "registry": ("BenchmarkInfo", "list_benchmarks", "load_dataset", "load_stream"),
        "scenarios": ("class_incremental", "domain_incremental", "make_stream"),
        "stream": ("OnlineExperience", "Split", "Stream", "online"),
        "transform": ("ToModelInput",),
    },
)
