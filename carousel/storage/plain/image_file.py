"""A record as a file that people can look at, and back, bit for bit.

A record with an image becomes that image, followed by what the image cannot hold:

====== ============================================================================
bytes  what
====== ============================================================================
all    the image: PNG for uint8 pixels, or JPEG/PNG bytes as they came
rest   the record (see `carousel.storage.codec`) without the bytes of that image
4      where in the record the image belongs
4      bytes of the rest
1, 3   0: bytes as they came, 1: pixels (H, W[, C]), 2: pixels (C, H, W); then zeros
8      xxh3-64 of everything before
4      magic ``CMRF``
====== ============================================================================

Programs that show images ignore what follows the image. Pixels are uint8 fields of shape (H, W),
(H, W, C) or (C, H, W) with C of 1 or 3. A record without an image is kept as it is.
"""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image
from xxhash import xxh3_64_intdigest

from carousel.errors import CorruptRecordError
from carousel.storage.codec import read_table
from carousel.storage.record import ENCODED, FieldSpec
from carousel.storage.table import MAGIC, Buffer

__all__ = ["from_file", "is_record_file", "suffix_of", "to_file"]

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_PLACE = struct.Struct("<IIB3x")
_END = struct.Struct("<Q4s")
_END_MAGIC = b"CMRF"
_MAX_PIXELS = 1 << 26
_AS_CAME, _CHANNELS_LAST, _CHANNELS_FIRST = 0, 1, 2


def to_file(record: Buffer) -> bytes:
    """The file of a record: its first image and the rest, or the record itself."""
    view = memoryview(record)
    info = read_table(view)
    for spec, (offset, length) in zip(info.layout, info.spans(view), strict=True):
        value = view[offset : offset + length]
        kind = _image_kind(spec, value)
        if kind is None:
            continue
        image = bytes(value) if kind == _AS_CAME else _png(value, spec, kind)
        rest = bytes(view[:offset]) + bytes(view[offset + length :])
        body = image + rest + _PLACE.pack(offset, len(rest), kind)
        return body + _END.pack(xxh3_64_intdigest(body), _END_MAGIC)
    return bytes(view)


def from_file(data: bytes) -> bytes:
    """The record of a file, exactly as it was given to `to_file`.

    Raises:
        CorruptRecordError: the file is not as it was written.
    """
    if data.startswith(MAGIC):
        return data
    try:
        digest, magic = _END.unpack_from(data, len(data) - _END.size)
        body = data[: -_END.size]
        if magic != _END_MAGIC or xxh3_64_intdigest(body) != digest:
            raise CorruptRecordError("the file fails its checksum")
        offset, length, kind = _PLACE.unpack_from(body, len(body) - _PLACE.size)
        start = len(body) - _PLACE.size - length
        image, rest = body[:start], body[start : start + length]
        value = image if kind == _AS_CAME else _pixels(image, kind)
    except (struct.error, OSError, ValueError, SyntaxError) as error:
        raise CorruptRecordError(f"the file cannot be read: {error}") from error
    return rest[:offset] + value + rest[offset:]


def is_record_file(data: bytes) -> bool:
    """Whether a file says that `to_file` made it."""
    return data.startswith(MAGIC) or data.endswith(_END_MAGIC)


def suffix_of(data: Buffer) -> str:
    """``.png``, ``.jpg`` or, for anything else, ``.rec``."""
    start = bytes(data[:8])
    if start == _PNG:
        return ".png"
    return ".jpg" if start.startswith(_JPEG) else ".rec"


def _image_kind(spec: FieldSpec, value: memoryview) -> int | None:
    if spec.dtype == ENCODED:
        return None if suffix_of(value) == ".rec" else _AS_CAME
    shape = spec.shape
    if spec.dtype != "uint8" or not 0 < spec.nbytes <= _MAX_PIXELS:
        return None
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)):
        return _CHANNELS_LAST
    return _CHANNELS_FIRST if len(shape) == 3 and shape[0] in (1, 3) else None


def _png(value: memoryview, spec: FieldSpec, kind: int) -> bytes:
    pixels = np.frombuffer(value, np.uint8).reshape(spec.shape)
    if kind == _CHANNELS_FIRST:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return file.getvalue()


def _pixels(image: bytes, kind: int) -> bytes:
    with Image.open(io.BytesIO(image), formats=["PNG"]) as opened:
        pixels = np.asarray(opened)
    if kind == _CHANNELS_FIRST and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, -1, 0)
    return pixels.tobytes()
