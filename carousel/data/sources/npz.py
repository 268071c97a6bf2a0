"""npz:FILE: labelled arrays in one file of numpy."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from carousel.data.dataset import ArrayDataset
from carousel.errors import BadInputError

__all__ = ["check", "load"]

_KEYS = ("x", "y", "group", "x_test", "y_test", "group_test", "class_names")


def check(path: Path) -> None:
    """Refuse a path where no file is."""
    if not path.is_file():
        raise BadInputError(f"there is no file {path}", fix="check the path after npz:")


def load(path: Path) -> ArrayDataset:
    """Read ``x`` and ``y``, and if present the other arguments of `ArrayDataset.of`.

    Args:
        path: a file that ``numpy.savez`` wrote, without pickled objects.

    Raises:
        BadInputError: no such file, not an npz file, keys missing or unknown, or arrays that
            cannot be used.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
        >>> np.savez(path, x=np.zeros((4, 8, 8), np.uint8), y=[0, 0, 1, 1])
        >>> load(path).shape
        (1, 8, 8)
    """
    check(path)
    try:
        with np.load(path, allow_pickle=False) as stored:
            _check_keys(path, stored.files)
            arrays = {name: stored[name] for name in stored.files}
    except BadInputError:
        raise
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise BadInputError(
            f"{path} cannot be read ({error})",
            fix="write it with numpy.savez, with arrays of numbers or text only",
        ) from error
    names = arrays.pop("class_names", None)
    return ArrayDataset.of(
        **arrays,
        class_names=None if names is None else [str(name) for name in names],
        name=path.stem,
        meta={"file": str(path), "license": "of the owner", "citation": "own data"},
    )


def _check_keys(path: Path, found: list[str]) -> None:
    if missing := [name for name in _KEYS[:2] if name not in found]:
        raise BadInputError(
            f"{path} has no array {missing[0]!r}, only {sorted(found)}",
            fix="name the samples x and the labels y",
        )
    if unknown := [name for name in found if name not in _KEYS]:
        raise BadInputError(
            f"{path} has an unknown array {unknown[0]!r}",
            fix=f"leave it out; known are {', '.join(_KEYS)}",
        )
