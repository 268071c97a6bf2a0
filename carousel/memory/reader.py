"""Reads stored samples into rows of the slab, whatever form they were stored in."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from carousel.errors import BadInputError, SchemaMismatchError, StorageIOError
from carousel.memory.schema import FieldValue, Schema
from carousel.storage.record import FieldSpec, Record
from carousel.storage.tier import ReadStatus, StorageTier

__all__ = ["RecordReader", "decode_image", "schema_of"]

Ints = npt.NDArray[np.int64]
Statuses = npt.NDArray[np.uint8]
Arrays = Mapping[str, npt.NDArray[np.generic]]

_BACKOFF_SECONDS = (0.002, 0.02, 0.2)


class RecordReader:
    """Reads batches from a tier, decodes images, and tries again when the disk stumbles.

    Args:
        tier: where the records are.
        schema: what a sample looks like in RAM.
        pause: called with seconds between retries; returns early when the engine closes.
    """

    def __init__(self, tier: StorageTier, schema: Schema, pause: Callable[[float], object]) -> None:
        self._tier = tier
        self._schema = schema
        self._pause = pause
        self._all_encoded = False

    def read(self, ids: Ints, out: Arrays, rows: Ints) -> Statuses:
        """Read (n,) ids into ``out[name][row]``; a `ReadStatus` a row, (n,) uint8.

        Only rows with status OK were written whole.
        """
        statuses = self._read_once(ids, out, rows)
        for delay in _BACKOFF_SECONDS:
            failed = np.flatnonzero(statuses == ReadStatus.IO_ERROR)
            if len(failed) == 0:
                break
            self._pause(delay)
            statuses[failed] = self._read_once(ids[failed], out, rows[failed])
        return statuses

    def _read_once(self, ids: Ints, out: Arrays, rows: Ints) -> Statuses:
        try:
            if self._all_encoded:
                return self._decode(ids, out, rows)
            statuses = self._tier.get_into(ids, out, rows)
            other = np.flatnonzero(statuses == ReadStatus.LAYOUT)
            if len(other):
                statuses[other] = self._decode(ids[other], out, rows[other])
                self._all_encoded = len(other) == len(ids)
            return statuses
        except (OSError, StorageIOError):
            return np.full(len(ids), ReadStatus.IO_ERROR, np.uint8)

    def _decode(self, ids: Ints, out: Arrays, rows: Ints) -> Statuses:
        statuses = np.empty(len(ids), np.uint8)
        records = self._tier.get_many(ids)
        for i, (record, row) in enumerate(zip(records, rows.tolist(), strict=True)):
            if record is None:
                aside = int(ids[i]) in self._tier.quarantined()
                statuses[i] = ReadStatus.CORRUPT if aside else ReadStatus.MISSING
            else:
                statuses[i] = _decode_record(record, self._schema, out, row)
        return statuses


def decode_image(data: bytes, spec: FieldSpec) -> npt.NDArray[np.uint8]:
    """The pixels of an encoded image (JPEG, PNG, anything Pillow reads) as ``spec.shape`` uint8.

    Shapes are (C, H, W) with 1 or 3 channels, or (H, W) for grey; the image is converted to
    that number of channels.

    Raises:
        SchemaMismatchError: not an image, or of another size.
    """
    channels = spec.shape[0] if len(spec.shape) == 3 else 1
    try:
        with Image.open(io.BytesIO(data)) as image:
            # before its pixels are made, of which there may be millions
            _check_shape((image.height, image.width), spec.shape[-2:], spec)
            pixels = np.asarray(image.convert("RGB" if channels == 3 else "L"))
    except SchemaMismatchError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever comes, SyntaxError among it
        raise SchemaMismatchError(
            f"field {spec.name} holds bytes that are no image ({error})",
            fix="give JPEG or PNG bytes",
        ) from error
    planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    if len(spec.shape) == 2:
        planes = planes[0]
    _check_shape(planes.shape, spec.shape, spec)
    return planes


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...], spec: FieldSpec) -> None:
    if shape != expected:
        raise SchemaMismatchError(
            f"field {spec.name} is an image {shape}, expected {expected}",
            fix="resize the images to the size of the first",
        )


def _decode_record(record: Record, schema: Schema, out: Arrays, row: int) -> ReadStatus:
    stored = {spec.name: spec for spec in record.layout}
    for spec in schema.fields:
        value = record.fields.get(spec.name)
        try:
            if isinstance(value, bytes):
                out[spec.name][row] = decode_image(value, spec)
            elif value is not None and stored[spec.name] == spec:
                out[spec.name][row] = value
            else:
                return ReadStatus.LAYOUT
        except SchemaMismatchError:
            return ReadStatus.LAYOUT
    return ReadStatus.OK


def schema_of(fields: Mapping[str, FieldValue]) -> Schema:
    """The schema of a batch of samples; the first of a field's encoded images tells its shape.

    Raises:
        BadInputError: there is no field, or no sample to look at.
    """
    specs: list[FieldSpec] = []
    for name, value in fields.items():
        if isinstance(value, np.ndarray | Tensor):
            specs += Schema.of({name: value}).fields
        else:
            specs.append(_image_spec(name, value))
    return Schema(tuple(specs))


def _image_spec(name: str, images: Sequence[bytes]) -> FieldSpec:
    if len(images) == 0 or not isinstance(images[0], bytes):
        raise BadInputError(
            f"field {name} is a {type(images).__name__}",
            fix="give a tensor, an array, or a list of encoded images",
        )
    try:
        with Image.open(io.BytesIO(images[0])) as image:
            grey = image.mode in ("1", "L", "I;16")
            return FieldSpec(name, "uint8", (1 if grey else 3, image.height, image.width))
    except (OSError, UnidentifiedImageError) as error:
        raise BadInputError(
            f"field {name} holds bytes that are no image ({error})", fix="give JPEG or PNG bytes"
        ) from error
