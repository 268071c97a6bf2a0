"""What a source of data is: facts to list, a check that builds nothing, and a loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from carousel.data.dataset import ArrayDataset

__all__ = ["LoadOptions", "Progress", "Source", "package_present"]

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) while a set is built."""


@dataclass(frozen=True)
class LoadOptions:
    """How to load a source.

    Attributes:
        root: folder of the files, where the source has files; None for its default.
        progress: told about long builds.
        resize: side length to bring images of mixed sizes to; sources with files of the user.
        download: fetch missing files from the source's home; nothing else ever uses a network.
    """

    root: Path | None = None
    progress: Progress | None = None
    resize: int | None = None
    download: bool = False


@dataclass(frozen=True)
class Source:
    """One named benchmark.

    Attributes:
        name: as in ``--benchmark``.
        n_classes: number of classes.
        shape: of one sample, (C, H, W).
        samples: how many there are, training and test together.
        experiences: default number of experiences.
        license: of the data.
        citation: whom to credit.
        missing: says what to do when package or files are absent, None when they are there.
        load: reads or builds the data; called only when `missing` says None, or to download.
        downloads: `load` can fetch missing files when it is allowed to.
    """

    name: str
    n_classes: int
    shape: tuple[int, ...]
    samples: int
    experiences: int
    license: str
    citation: str
    missing: Callable[[Path | None], str | None]
    load: Callable[[LoadOptions], ArrayDataset]
    downloads: bool = False


def package_present(name: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return find_spec(name) is not None
