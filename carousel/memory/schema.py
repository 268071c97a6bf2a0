"""What a sample of the memory looks like: its fields, their dtypes and shapes, checked once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.memory.convert import TORCH_DTYPES, dtype_name, to_numpy, to_tensor
from carousel.storage.record import ENCODED, FieldSpec, Layout, RecordBatch
from carousel.storage.schema_note import SCHEMA
from carousel.storage.tier import StorageTier

__all__ = ["META_KEY", "FieldValue", "Schema", "check_store_schema", "stored_schema"]

FieldValue: TypeAlias = Tensor | npt.NDArray[np.generic] | Sequence[bytes]
"""n values of one field: a tensor or array (n, *shape), or n encoded images as bytes."""

META_KEY = SCHEMA
"""Where a storage keeps the schema of its samples."""

_MAX_NAME_BYTES = 32
_MAX_RANK = 8


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields that every sample of a memory has, fixed at the first sample.

    Args:
        fields: name, dtype and per-sample shape of each field, in order.

    Raises:
        BadInputError: no field, a name that is used twice or too long, a dtype that tensors do
            not have, or more than 8 dimensions.

    Example:
        >>> schema = Schema.of({"x": torch.zeros(4, 3, 32, 32, dtype=torch.uint8)})
        >>> schema.nbytes, str(schema)
        (3072, 'x uint8 (3, 32, 32)')
    """

    fields: Layout

    def __post_init__(self) -> None:
        if not self.fields:
            raise BadInputError("a sample has no fields", fix="give at least one, such as x")
        names = [spec.name for spec in self.fields]
        if len(set(names)) != len(names):
            raise BadInputError(f"field names are {names}", fix="use each name once")
        for spec in self.fields:
            _check_spec(spec)

    @classmethod
    def of(cls, batch: Mapping[str, FieldValue]) -> Schema:
        """The schema of a batch, each value (n, *shape); n may be 0, its shape still tells.

        Raises:
            BadInputError: a value is encoded bytes (its decoded shape is not known: build the
                schema from `FieldSpec`), no tensor or array, or has no batch dimension.
        """
        return cls(tuple(_spec_of(name, value) for name, value in batch.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """The field names, in order."""
        return tuple(spec.name for spec in self.fields)

    @property
    def nbytes(self) -> int:
        """Bytes of one sample's payload in a slot."""
        return sum(spec.nbytes for spec in self.fields)

    def __str__(self) -> str:
        return ", ".join(_describe(spec) for spec in self.fields)

    def empty(self, rows: int, *, pin: bool = False) -> dict[str, Tensor]:
        """Uninitialised CPU tensors (rows, *shape), one a field; `pin` for faster GPU copies."""
        return {
            spec.name: torch.empty(
                (rows, *spec.shape), dtype=TORCH_DTYPES[spec.dtype], pin_memory=pin
            )
            for spec in self.fields
        }

    def views(self, tensors: Mapping[str, Tensor]) -> dict[str, npt.NDArray[np.generic]]:
        """The same memory as numpy arrays, for `StorageTier.get_into`; bfloat16 as its bits."""
        return {spec.name: to_numpy(tensors[spec.name]) for spec in self.fields}

    def validate(self, batch: Mapping[str, FieldValue]) -> int:
        """Check a batch and return its number of rows; 0 rows are fine and mean nothing to do.

        Raises:
            SchemaMismatchError: a field is missing, unknown, or has another shape or dtype; names
                the field, what it is and what was expected.
            BadInputError: the fields differ in their number of rows.
        """
        if set(batch) != set(self.names):
            raise SchemaMismatchError(
                f"a sample has the fields {sorted(batch)}, expected {sorted(self.names)}",
                fix="give every sample the fields of the first",
            )
        for spec in self.fields:
            _check_value(spec, batch[spec.name])
        rows = {name: len(value) for name, value in batch.items()}
        if len(set(rows.values())) > 1:
            raise BadInputError(f"fields have {rows} rows", fix="give each field one row a sample")
        return next(iter(rows.values()))

    def check_finite(self, batch: Mapping[str, FieldValue]) -> None:
        """Refuse NaN and infinity in float fields.

        Raises:
            BadInputError: names the field and the first bad row.
        """
        for spec in self.fields:
            value = batch[spec.name]
            if isinstance(value, Tensor | np.ndarray):
                _check_finite(spec.name, to_tensor(value))

    def to_records(
        self,
        ids: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64],
        tasks: npt.NDArray[np.int64],
        batch: Mapping[str, FieldValue],
    ) -> RecordBatch:
        """A validated batch as records for a tier, without copying what is contiguous on the CPU.

        Encoded values stay the bytes they are.
        """
        layout = tuple(
            spec
            if isinstance(batch[spec.name], Tensor | np.ndarray)
            else FieldSpec(spec.name, ENCODED)
            for spec in self.fields
        )
        values = {spec.name: _record_value(batch[spec.name]) for spec in self.fields}
        return RecordBatch(ids, labels, tasks, layout, values)

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads back to an equal schema."""
        return json.dumps([[spec.name, spec.dtype, list(spec.shape)] for spec in self.fields])

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        """Read what `to_json` wrote.

        Raises:
            BadInputError: the text is something else.
        """
        try:
            rows: list[list[Any]] = json.loads(text)
            specs = tuple(
                FieldSpec(str(name), str(dtype), tuple(int(size) for size in shape))
                for name, dtype, shape in rows
            )
        except (ValueError, TypeError) as error:
            raise BadInputError(
                f"a schema reads {text!r:.80}", fix="give the text that Schema.to_json made"
            ) from error
        return cls(specs)


def stored_schema(tier: StorageTier) -> Schema | None:
    """The schema of a storage's samples; None as long as it has none, or was emptied.

    Raises:
        BadInputError: what the storage says of it cannot be read.
    """
    note = tier.get_meta(META_KEY)
    return Schema.from_json(note) if note else None


def check_store_schema(tier: StorageTier, schema: Schema) -> None:
    """Tie a storage to the schema of its samples: written the first time, compared later.

    Raises:
        SchemaMismatchError: the storage holds samples of another schema; it is left unchanged.
    """
    stored = stored_schema(tier)
    if stored is None:
        tier.put_meta({META_KEY: schema.to_json().encode()})
    elif stored != schema:
        raise SchemaMismatchError(
            f"the storage holds samples with {stored}, these have {schema}",
            fix="use another storage path, or samples of the stored kind",
        )


def _describe(spec: FieldSpec) -> str:
    return f"{spec.name} {spec.dtype} {spec.shape}"


def _check_spec(spec: FieldSpec) -> None:
    if not 1 <= len(spec.name.encode()) <= _MAX_NAME_BYTES:
        raise BadInputError(
            f"a field is called {spec.name!r}", fix=f"use 1 to {_MAX_NAME_BYTES} bytes of UTF-8"
        )
    if spec.dtype not in TORCH_DTYPES:
        raise BadInputError(
            f"field {spec.name} has dtype {spec.dtype}", fix=f"use one of {', '.join(TORCH_DTYPES)}"
        )
    if len(spec.shape) > _MAX_RANK or any(size < 0 for size in spec.shape):
        raise BadInputError(
            f"field {spec.name} has shape {spec.shape}", fix=f"use at most {_MAX_RANK} dimensions"
        )


def _spec_of(name: str, value: FieldValue) -> FieldSpec:
    if not isinstance(value, Tensor | np.ndarray):
        raise BadInputError(
            f"field {name} is encoded bytes and its decoded shape is not known",
            fix="build the schema from FieldSpec(name, dtype, shape)",
        )
    _check_batched(name, value)
    return FieldSpec(name, dtype_name(name, value), tuple(int(size) for size in value.shape[1:]))


def _check_batched(name: str, value: Tensor | npt.NDArray[np.generic]) -> None:
    if value.ndim == 0:
        raise BadInputError(f"field {name} is a single value", fix="give a batch (n, *shape)")


def _check_value(spec: FieldSpec, value: FieldValue) -> None:
    if not isinstance(value, Tensor | np.ndarray):
        _check_encoded(spec, value)
        return
    _check_batched(spec.name, value)
    got = FieldSpec(spec.name, dtype_name(spec.name, value), tuple(value.shape[1:]))
    if got != spec:
        raise SchemaMismatchError(
            f"field {spec.name} is {got.dtype} {got.shape} a sample, "
            f"expected {spec.dtype} {spec.shape}",
            fix="keep the shape and dtype of the first sample, or use another memory",
        )


def _check_encoded(spec: FieldSpec, value: Sequence[bytes]) -> None:
    if not all(isinstance(item, bytes) for item in value):
        raise BadInputError(
            f"field {spec.name} is a {type(value).__name__}",
            fix="give a tensor, a numpy array or a list of bytes",
        )
    if spec.dtype != "uint8" or len(spec.shape) not in (2, 3):
        raise SchemaMismatchError(
            f"field {spec.name} is encoded images, expected {spec.dtype} {spec.shape}",
            fix="give arrays: only uint8 images may come encoded",
        )


def _check_finite(name: str, value: Tensor) -> None:
    if not (value.is_floating_point() or value.is_complex()) or value.numel() == 0:
        return
    # One pass without a temporary (a wider dtype would copy it all): a sum is finite only if
    # every term is; one that overflows is looked at more closely.
    if not value.is_complex() and bool(torch.isfinite(value.sum())):
        return
    bad = ~torch.isfinite(value).reshape(len(value), -1).all(dim=1)
    if not bool(bad.any()):
        return
    row = int(bad.int().argmax())
    raise BadInputError(
        f"field {name} holds NaN or infinity in row {row}", fix="clean the data or drop the sample"
    )


def _record_value(value: FieldValue) -> npt.NDArray[np.generic] | Sequence[bytes]:
    if not isinstance(value, Tensor | np.ndarray):
        return list(value)
    return np.ascontiguousarray(to_numpy(to_tensor(value)))
