"""Built arrays on disk: written whole or not at all, and checked when they are read again."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrays", "cached", "content_hash", "data_root"]

Arrays = dict[str, NDArray[Any]]
_HASH_KEY = "content_hash"


def data_root() -> Path:
    """Where data files are looked for and built sets are kept.

    ``$CAROUSEL_DATA``, by default ``~/.cache/carousel``.
    """
    return Path(os.environ.get("CAROUSEL_DATA") or "~/.cache/carousel").expanduser()


def content_hash(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes() if array.dtype.kind == "U" else array.data)
    return digest.hexdigest()


def cached(name: str, key: Mapping[str, str | int], build: Callable[[], Arrays]) -> Arrays:
    """The arrays that `build` makes, from disk when they were made before with the same `key`.

    A damaged file is rebuilt with a warning; a folder that cannot be written costs a warning
    and the next call builds again.

    Args:
        name: first part of the file name.
        key: everything the result depends on: versions of builder and packages, arguments.
        build: makes the arrays; numeric or text, never objects.

    Returns:
        The arrays by name.
    """
    text = json.dumps(key, sort_keys=True)
    path = data_root() / "built" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.npz"
    if path.is_file():
        arrays = _read(path)
        if arrays is not None:
            return arrays
        warnings.warn(f"{path} is damaged: building {name} again", stacklevel=2)
    arrays = build()
    try:
        _write(path, arrays)
    except OSError as error:
        warnings.warn(
            f"{name} was built and could not be kept in {path.parent} ({error}): "
            "set CAROUSEL_DATA to a folder that can be written",
            stacklevel=2,
        )
    return arrays


def _read(path: Path) -> Arrays | None:
    """The arrays of a file, or None when it is not what was written."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
    expected = arrays.pop(_HASH_KEY, None)
    return arrays if expected is not None and str(expected) == content_hash(arrays) else None


def _write(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            content: Any = {**arrays, _HASH_KEY: np.array(content_hash(arrays))}
            np.savez(file, **content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
