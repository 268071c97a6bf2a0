"""split-mnist, split-cifar10 and split-cifar100 from files that torchvision reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from carousel.data.cache import data_root
from carousel.data.dataset import ArrayDataset
from carousel.data.source import LoadOptions, Source
from carousel.errors import DatasetMissingError

__all__ = ["SOURCES"]


@dataclass(frozen=True)
class _Set:
    """A data set of torchvision: facts, its class, and the files it wants below the data root."""

    name: str
    n_classes: int
    shape: tuple[int, ...]
    samples: int
    experiences: int
    kind: str
    folder: str
    files: tuple[str, ...]
    archive: str
    license: str
    citation: str


_MNIST = _Set(
    name="split-mnist",
    n_classes=10,
    shape=(1, 28, 28),
    samples=70000,
    experiences=5,
    kind="MNIST",
    folder="MNIST/raw",
    files=tuple(
        f"{part}-{what}-ubyte"
        for part in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
    ),
    archive="the four unpacked IDX files",
    license="CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio and Haffner, Gradient-based learning, 1998",
)
_CIFAR10 = _Set(
    name="split-cifar10",
    n_classes=10,
    shape=(3, 32, 32),
    samples=60000,
    experiences=5,
    kind="CIFAR10",
    folder="cifar-10-batches-py",
    files=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
    archive="the unpacked cifar-10-python.tar.gz",
    license="free for research, no explicit licence",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
)
_CIFAR100 = _Set(
    name="split-cifar100",
    n_classes=100,
    shape=(3, 32, 32),
    samples=60000,
    experiences=10,
    kind="CIFAR100",
    folder="cifar-100-python",
    files=("train", "test", "meta"),
    archive="the unpacked cifar-100-python.tar.gz",
    license=_CIFAR10.license,
    citation=_CIFAR10.citation,
)


def _load(wanted: _Set, options: LoadOptions) -> ArrayDataset:
    from torchvision import datasets

    root = options.root or data_root()
    kind: Any = getattr(datasets, wanted.kind)
    try:
        train = kind(str(root), train=True, download=options.download)
        test = kind(str(root), train=False, download=options.download)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        raise DatasetMissingError(
            f"the files of {wanted.name} in {root / wanted.folder} cannot be read ({error})",
            fix=_how_to_get(wanted, root),
        ) from error
    return ArrayDataset.of(
        np.asarray(train.data),
        np.asarray(train.targets),
        x_test=np.asarray(test.data),
        y_test=np.asarray(test.targets),
        class_names=[str(label) for label in train.classes],
        name=wanted.name,
        meta={"license": wanted.license, "citation": wanted.citation},
    )


def _missing(wanted: _Set, root: Path | None) -> str | None:
    folder = (root or data_root()) / wanted.folder
    if all((folder / file).is_file() for file in wanted.files):
        return None
    return _how_to_get(wanted, root or data_root())


def _how_to_get(wanted: _Set, root: Path) -> str:
    return (
        f"put {wanted.archive} into {root / wanted.folder}, or give the folder above it with "
        "--data-root"
    )


def _source(wanted: _Set) -> Source:
    return Source(
        name=wanted.name,
        n_classes=wanted.n_classes,
        shape=wanted.shape,
        samples=wanted.samples,
        experiences=wanted.experiences,
        license=wanted.license,
        citation=wanted.citation,
        missing=partial(_missing, wanted),
        load=partial(_load, wanted),
        downloads=True,
    )


SOURCES = tuple(_source(wanted) for wanted in (_MNIST, _CIFAR10, _CIFAR100))
