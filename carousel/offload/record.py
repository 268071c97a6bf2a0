"""A chunk as bytes: its fields, each padded to 4 KiB, and a trailer that vouches for them.

=========== ======================================================================
field       what
=========== ======================================================================
``param``   the parameter's value in the precision of the states
``m``       ``exp_avg``
``v``       ``exp_avg_sq``
``vmax``    ``max_exp_avg_sq``, with amsgrad
=========== ======================================================================

Where the parameter itself has that precision, ``param`` is written for recovery only and never
read under the step; a store that nothing is recovered from leaves it out.

The trailer holds a checksum of every field, so a record is either whole or known to be torn, and
the step it was written at, so a write that never reached the medium is known too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from carousel.errors import CorruptRecordError
from carousel.offload.plan import Chunk

__all__ = ["BLOCK", "ITEM_BYTES", "PARAM", "Field", "RecordLayout", "layout_of", "state_dtype"]

BLOCK = 4096
"""Fields begin at multiples of this many bytes, as direct I/O wants."""

PARAM = "param"

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element, by dtype."""

Bytes = npt.NDArray[np.uint8]

_HEAD = struct.Struct("<8s16sIIQ4Q")
_MAGIC = b"CRSLOFF1"
_HALVES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Field:
    """Where a field lies in its record; `nbytes` without the padding."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class RecordLayout:
    """Where everything lies in a record.

    Args:
        fields: in order of `offset`.
        dtype: of the fields.
        numel: elements of each field.
        read_from: first byte that a step needs.
        nbytes: bytes of the record with its trailer.
    """

    fields: tuple[Field, ...]
    dtype: str
    numel: int
    read_from: int
    nbytes: int

    @cached_property
    def trailer(self) -> int:
        """Where the trailer begins."""
        return self.nbytes - BLOCK

    @property
    def resident_bytes(self) -> int:
        """RAM of the states alone, without what is written for recovery."""
        return sum(f.nbytes for f in self.fields if f.offset >= self.read_from)

    def seal(self, record: Bytes, plan: str, chunk: int, step: int) -> None:
        """Write the trailer of a record whose fields are in place.

        Args:
            record: (nbytes,) uint8.
            plan: digest of the plan.
            chunk: number of the chunk.
            step: that it was written at.
        """
        sums = [xxh3_64_intdigest(self._bytes(record, f)) for f in self.fields]
        sums += [0] * (4 - len(sums))
        head = _HEAD.pack(_MAGIC, bytes.fromhex(plan), chunk, len(self.fields), step, *sums)
        end = head + struct.pack("<Q", xxh3_64_intdigest(head))
        record[self.trailer : self.trailer + len(end)] = np.frombuffer(end, np.uint8)

    def check(
        self, record: Bytes, plan: str, chunk: int, step: int, *, names: Sequence[str]
    ) -> None:
        """Refuse a record that is not what was written.

        Args:
            record: (nbytes,) uint8, with the fields of `names` and the trailer in place.
            plan: digest of the plan.
            chunk: number of the chunk.
            step: that it was written at.
            names: of the fields to check.

        Raises:
            CorruptRecordError: it was torn, changed, or is of another step or plan.
        """
        what = f"chunk {chunk} of the optimizer's states"
        raw = record[self.trailer : self.trailer + _HEAD.size + 8].tobytes()
        head, digest = raw[: _HEAD.size], struct.unpack_from("<Q", raw, _HEAD.size)[0]
        if xxh3_64_intdigest(head) != digest:
            raise CorruptRecordError(f"{what} is torn: its trailer fails its checksum")
        magic, of_plan, number, fields, at, *sums = _HEAD.unpack(head)
        found: tuple[Any, ...] = (magic, of_plan.hex(), number, fields)
        if found != (_MAGIC, plan, chunk, len(self.fields)):
            raise CorruptRecordError(f"{what} belongs to another plan")
        if at != step:
            raise CorruptRecordError(f"{what} is of step {at} and step {step} was committed")
        for part, expected in zip(self.fields, sums, strict=False):
            if part.name in names and xxh3_64_intdigest(self._bytes(record, part)) != expected:
                raise CorruptRecordError(f"{what} is torn: {part.name} fails its checksum")

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """Names of the fields that a step reads."""
        return tuple(f.name for f in self.fields if f.offset >= self.read_from)

    @staticmethod
    def _bytes(record: Bytes, part: Field) -> memoryview:
        return record.data[part.offset : part.offset + part.nbytes]


def layout_of(chunk: Chunk, *, masters: bool, recoverable: bool) -> RecordLayout:
    """The layout of a chunk's record.

    Args:
        chunk: of a plan.
        masters: keep fp32 values of 16-bit parameters.
        recoverable: write what parameters are recovered from.

    Example:
        >>> chunk = Chunk(0, "float32", False, 1024, ())
        >>> layout = layout_of(chunk, masters=True, recoverable=True)
        >>> [part.name for part in layout.fields], layout.read_from, layout.nbytes
        (['param', 'm', 'v'], 4096, 16384)
    """
    dtype = state_dtype(chunk.dtype, masters=masters)
    master = dtype != chunk.dtype
    names = [PARAM] if master or recoverable else []
    names += ["m", "v", "vmax"] if chunk.amsgrad else ["m", "v"]
    nbytes = chunk.numel * ITEM_BYTES[dtype]
    padded = -(-nbytes // BLOCK) * BLOCK
    fields = tuple(Field(name, number * padded, nbytes) for number, name in enumerate(names))
    skip = padded if PARAM in names and not master else 0
    return RecordLayout(fields, dtype, chunk.numel, skip, padded * len(names) + BLOCK)


def state_dtype(dtype: str, *, masters: bool) -> str:
    """The dtype of the states of parameters of a dtype; they are float32 beside masters."""
    return "float32" if masters and dtype in _HALVES else dtype
