"""Small values under a checksum, so that a damaged one is never taken for a value."""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

from carousel.errors import StorageCorruptedError
from carousel.storage.table import Buffer

__all__ = ["seal", "unseal"]

_HEAD = struct.Struct("<QQ")


def seal(value: bytes) -> bytes:
    """The value behind its length and xxh3-64, 8 bytes little-endian each."""
    return _HEAD.pack(len(value), xxh3_64_intdigest(value)) + value


def unseal(raw: Buffer, what: str) -> bytes:
    """The value that was sealed.

    Args:
        raw: what `seal` made.
        what: names the value in the error.

    Raises:
        StorageCorruptedError: a byte of it has changed.

    Example:
        >>> unseal(seal(b"abc"), "the greeting")
        b'abc'
    """
    # The length first: a damaged page may state one that leads beyond the end of the file.
    if len(raw) >= _HEAD.size:
        length, digest = _HEAD.unpack_from(raw)
        if length == len(raw) - _HEAD.size:
            value = bytes(raw[_HEAD.size :])
            if xxh3_64_intdigest(value) == digest:
                return value
    raise StorageCorruptedError(
        f"{what} is damaged; export what is readable, restore a copy, or start anew"
    )
