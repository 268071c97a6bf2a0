"""folder:PATH: PNG and JPEG images, one folder a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from carousel.data.dataset import ArrayDataset
from carousel.data.source import Progress
from carousel.errors import BadInputError

__all__ = ["check", "load"]

_SUFFIXES = (".png", ".jpg", ".jpeg")
_GREY = ("1", "L", "LA")
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L")

Labelled = list[tuple[Path, str]]


def check(path: Path) -> None:
    """Refuse a path where no folder is."""
    if not path.is_dir():
        raise BadInputError(f"there is no folder {path}", fix="check the path after folder:")


def load(path: Path, resize: int | None = None, progress: Progress | None = None) -> ArrayDataset:
    """Decode a tree of images into RAM.

    The tree is ``PATH/class/*.png``, or ``PATH/train/class/*.png`` and ``PATH/test/class/*.png``.
    Images are (1, H, W) when all of them are grey, else (3, H, W).

    Args:
        path: the folder.
        resize: bring every image to this many pixels a side; without it all sizes must agree.
        progress: called after each image.

    Raises:
        BadInputError: no such folder, no classes, an empty class, an image that cannot be read,
            has more than 8 bits a channel or a size of its own.
    """
    check(path)
    if resize is not None and resize < 1:
        raise BadInputError(f"resize is {resize}", fix="give the side length in pixels")
    divided = (path / "train").is_dir() and (path / "test").is_dir()
    train = _images(path / "train" if divided else path)
    test = _images(path / "test") if divided else []
    size, mode = _common_form([file for file, _ in (*train, *test)], resize)
    counted = range(len(train) + len(test))
    x = _decode(train, size, mode, progress, counted)
    x_test = _decode(test, size, mode, progress, counted[len(train) :])
    return ArrayDataset.of(
        x,
        [label for _, label in train],
        x_test=x_test if divided else None,
        y_test=[label for _, label in test] if divided else None,
        layout="NCHW",
        name=path.resolve().name,
        meta={"folder": str(path), "license": "of the owner", "citation": "own data"},
    )


def _images(folder: Path) -> Labelled:
    """Image files and their classes, sorted by class and name."""
    classes = sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not classes:
        raise BadInputError(
            f"{folder} has no sub-folders", fix="put the images of each class into a folder"
        )
    found: Labelled = []
    for entry in classes:
        files = sorted(file for file in entry.rglob("*") if file.suffix.lower() in _SUFFIXES)
        if not files:
            raise BadInputError(
                f"{entry} holds no PNG or JPEG image", fix="add images, or remove the folder"
            )
        found += [(file, entry.name) for file in files]
    return found


def _common_form(files: list[Path], resize: int | None) -> tuple[tuple[int, int], str]:
    """Width and height, and mode "L" or "RGB", from the headers alone."""
    heads = [_header(file) for file in files]
    size = heads[0][0]
    for file, (other, _) in zip(files, heads, strict=True):
        if resize is None and other != size:
            raise BadInputError(
                f"{file} is {other[0]}x{other[1]} pixels, {files[0]} is {size[0]}x{size[1]}",
                fix="bring all images to one size (from Python, resize does it)",
            )
    grey = all(mode in _GREY for _, mode in heads)
    return size if resize is None else (resize, resize), "L" if grey else "RGB"


def _header(file: Path) -> tuple[tuple[int, int], str]:
    try:
        with Image.open(file) as image:
            size, mode = image.size, image.mode
    except (OSError, UnidentifiedImageError) as error:
        raise _unreadable(file, error) from error
    if mode in _DEEP:
        raise BadInputError(
            f"{file} has more than 8 bits a channel ({mode})", fix="convert it to 8 bits"
        )
    return size, mode


def _decode(
    files: Labelled, size: tuple[int, int], mode: str, progress: Progress | None, counted: range
) -> NDArray[np.uint8]:
    width, height = size
    x = np.empty((len(files), 1 if mode == "L" else 3, height, width), np.uint8)
    for row, (file, _) in enumerate(files):
        try:
            with Image.open(file) as image:
                pixels = image.convert(mode)
        except (OSError, SyntaxError) as error:
            raise _unreadable(file, error) from error
        if pixels.size != size:
            pixels = pixels.resize(size, Image.Resampling.BILINEAR)
        x[row] = np.asarray(pixels).reshape(height, width, -1).transpose(2, 0, 1)
        if progress is not None:
            progress(counted[row] + 1, counted.stop)
    return x


def _unreadable(file: Path, error: Exception) -> BadInputError:
    return BadInputError(f"{file} is no readable image ({error})", fix="repair or remove the file")
