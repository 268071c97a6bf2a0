"""split-tiny-imagenet from files that Avalanche reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carousel.data.cache import data_root
from carousel.data.dataset import ArrayDataset
from carousel.data.source import LoadOptions, Progress, Source
from carousel.errors import BadInputError, DatasetMissingError

__all__ = ["SOURCE", "load"]

_FOLDER = "tiny-imagenet-200"
_FILES = ("wnids.txt", "words.txt", "train", "val/images", "val/val_annotations.txt")
_SIDE = 64
_LICENSE = "ImageNet terms: research and education, no redistribution"
_CITATION = "Le and Yang, Tiny ImageNet visual recognition challenge, 2015"


def load(options: LoadOptions) -> ArrayDataset:
    """Decode 100,000 training and 10,000 test images (3, 64, 64): 1.35 GB of RAM.

    Raises:
        DatasetMissingError: the files are incomplete.
        BadInputError: an image has another size.
    """
    from avalanche.benchmarks.datasets import TinyImagenet

    root = options.root or data_root()
    try:
        train = TinyImagenet(root, train=True, download=options.download)
        test = TinyImagenet(root, train=False, download=options.download)
    except (RuntimeError, OSError, KeyError) as error:
        raise DatasetMissingError(
            f"the files of split-tiny-imagenet in {root / _FOLDER} cannot be read ({error})",
            fix=_how_to_get(root),
        ) from error
    total = len(train) + len(test)
    x, y = _decode(train, options.progress, 0, total)
    x_test, y_test = _decode(test, options.progress, len(train), total)
    return ArrayDataset.of(
        x,
        y,
        x_test=x_test,
        y_test=y_test,
        class_names=[train.id2label[label] for label in range(len(train.id2label))],
        layout="NCHW",
        name="split-tiny-imagenet",
        meta={"license": _LICENSE, "citation": _CITATION},
    )


def _decode(
    dataset: Any, progress: Progress | None, done: int, total: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images in the order of class and file name, whatever order the file system lists them in."""
    order = sorted(range(len(dataset)), key=lambda row: (dataset.targets[row], dataset.data[row]))
    x = np.empty((len(order), 3, _SIDE, _SIDE), np.uint8)
    for place, row in enumerate(order):
        image, _ = dataset[row]
        if image.size != (_SIDE, _SIDE):
            raise BadInputError(
                f"{dataset.data[row]} is {image.size[0]}x{image.size[1]} pixels",
                fix=f"Tiny-ImageNet images have {_SIDE}x{_SIDE}: unpack the archive again",
            )
        x[place] = np.asarray(image).transpose(2, 0, 1)
        if progress is not None:
            progress(done + place + 1, total)
    return x, np.array([dataset.targets[row] for row in order], np.int64)


def _missing(root: Path | None) -> str | None:
    folder = (root or data_root()) / _FOLDER
    if all((folder / file).exists() for file in _FILES):
        return None
    return _how_to_get(root or data_root())


def _how_to_get(root: Path) -> str:
    return (
        f"unpack tiny-imagenet-200.zip into {root / _FOLDER}, or give the folder above it with "
        "--data-root"
    )


SOURCE = Source(
    name="split-tiny-imagenet",
    n_classes=200,
    shape=(3, _SIDE, _SIDE),
    samples=110000,
    experiences=10,
    license=_LICENSE,
    citation=_CITATION,
    missing=_missing,
    load=load,
    downloads=True,
)
