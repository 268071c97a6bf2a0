"""Looking at a data file by hand before it is mapped: a damaged one must not become a SIGBUS.

Only the two meta pages are read (LMDB file format 1, native byte order). A file that is shorter
than its newest meta page says would kill the process at the first touch of a missing page.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from carousel.errors import ForeignStorageError, StorageCorruptedError, StorageError

__all__ = ["Geometry", "inspect_data_file"]

_MAGIC = 0xBEEFC0DE
_FORMAT = 1
_META_FLAG = 0x08
# Page number, pad, flags, lower and upper; then magic, format, address, size of the map, the
# records of the two root trees (the first starts with the page size), last page, transaction.
_PAGE = struct.Struct("=QHHI")
_META = struct.Struct("=IIQQI44x48xQQ")
_PAGE_SIZES = [1 << power for power in range(9, 17)]


class Geometry(NamedTuple):
    """What the newest meta page states.

    Args:
        page_bytes: size of a page.
        last_page: number of the last page in use.
        transaction: number of the last committed transaction.
        file_bytes: size of the file now.
    """

    page_bytes: int
    last_page: int
    transaction: int
    file_bytes: int


def inspect_data_file(path: Path, *, ours: bool) -> Geometry:
    """Read the meta pages of a data file and hold its size against them.

    Args:
        path: the data file.
        ours: whether the folder says that Carousel made the file.

    Raises:
        StorageCorruptedError: the file is ours and is empty, damaged or too short.
        ForeignStorageError: the file is no LMDB file, or one of a newer format.
    """
    size = path.stat().st_size
    if size == 0:
        raise _unreadable(path, "is empty", ours)
    with path.open("rb") as file:
        head = file.read(_PAGE.size + _META.size)
        page_bytes = _page_bytes(path, head, ours)
        file.seek(page_bytes)
        metas = [_meta(path, head, ours), _meta(path, file.read(len(head)), ours)]
    transaction, last_page = max(metas)
    needed = (last_page + 1) * page_bytes
    if size < needed:
        raise StorageCorruptedError(
            f"{path} was cut short: it has {size} bytes of {needed}; restore it from a copy, or "
            "start anew with another path"
        )
    return Geometry(page_bytes, last_page, transaction, size)


def _page_bytes(path: Path, head: bytes, ours: bool) -> int:
    if len(head) < _PAGE.size + _META.size:
        raise _unreadable(path, "is too short to be a database", ours)
    page_bytes = int(_META.unpack_from(head, _PAGE.size)[4])
    if _META.unpack_from(head, _PAGE.size)[0] == _MAGIC and page_bytes in _PAGE_SIZES:
        return page_bytes
    raise _unreadable(path, "does not begin with a meta page of LMDB", ours)


def _meta(path: Path, raw: bytes, ours: bool) -> tuple[int, int]:
    if len(raw) < _PAGE.size + _META.size:
        raise _unreadable(path, "ends within its meta pages", ours)
    flags = _PAGE.unpack_from(raw)[2]
    magic, version, _, _, _, last_page, transaction = _META.unpack_from(raw, _PAGE.size)
    if magic != _MAGIC or not flags & _META_FLAG:
        raise _unreadable(path, "has a damaged meta page", ours)
    if version != _FORMAT:
        raise ForeignStorageError(
            f"{path} has format {version} of LMDB, this version reads format {_FORMAT}; "
            "use another path"
        )
    return int(transaction), int(last_page)


def _unreadable(path: Path, what: str, ours: bool) -> StorageError:
    if ours:
        return StorageCorruptedError(
            f"{path} {what}; restore it from a copy, or start anew with another path"
        )
    return ForeignStorageError(f"{path} {what} and was not made by Carousel; use another path")
