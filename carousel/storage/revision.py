"""New values for some fields of stored records: which bytes of a record become which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.storage.codec import decode_as, read_table
from carousel.storage.columns import Ids
from carousel.storage.record import ENCODED, FieldSpec, numpy_dtype
from carousel.storage.table import Buffer, TableInfo

__all__ = ["Revision"]


@dataclass(frozen=True, slots=True)
class Revision:
    """Values of some fields for n records; a record keeps its size, label and task.

    Args:
        ids: (n,) distinct ids.
        fields: per field an array (n, *shape), as the records have it.
    """

    ids: Ids
    fields: Mapping[str, npt.NDArray[np.generic]]

    @classmethod
    def checked(cls, ids: Ids, fields: Mapping[str, npt.NDArray[np.generic]]) -> Revision:
        """A revision whose arrays fit together.

        Raises:
            BadInputError: an id is given twice, or a field has another number of rows.
        """
        if len(np.unique(ids)) < len(ids):
            raise BadInputError("an id is given twice", fix="revise every record once a call")
        for name, values in fields.items():
            if len(values) != len(ids):
                raise BadInputError(
                    f"field {name} has {len(values)} rows for {len(ids)} ids",
                    fix="give each field one row a record",
                )
        return cls(ids, fields)

    def check_layout(self, info: TableInfo) -> None:
        """Make sure that records of a layout can take the values without changing their size.

        Raises:
            SchemaMismatchError: names the field, what came and what was expected.
        """
        specs = {spec.name: spec for spec in info.layout}
        for name, values in self.fields.items():
            problem = _problem(values, specs.get(name))
            if problem:
                raise SchemaMismatchError(
                    f"field {name} cannot be revised: {problem}",
                    fix="give values of the dtype and shape that are stored",
                )

    def applied(self, record: Buffer, row: int) -> memoryview:
        """The record that a stored one becomes.

        Args:
            record: what is stored under ``ids[row]``.
            row: of the values.

        Raises:
            CorruptRecordError: what is stored is damaged.
            SchemaMismatchError: it has not got the fields.
        """
        decode_as(record, int(self.ids[row]))
        info = read_table(record)
        self.check_layout(info)
        fresh = bytearray(record)
        for spec, (start, length) in zip(info.layout, info.spans(record), strict=True):
            if spec.name in self.fields:
                value = np.ascontiguousarray(self.fields[spec.name][row])
                fresh[start : start + length] = value.tobytes()
        fresh[8:16] = xxh3_64_intdigest(memoryview(fresh)[16:]).to_bytes(8, "little")
        return memoryview(fresh)


def _problem(values: npt.NDArray[np.generic], spec: FieldSpec | None) -> str:
    if spec is None:
        return "the records have no such field"
    if spec.dtype == ENCODED:
        return "encoded values vary in size"
    if values.dtype != numpy_dtype(spec.dtype) or values.shape[1:] != spec.shape:
        return (
            f"it is {values.dtype} {values.shape[1:]} a sample, stored as {spec.dtype} {spec.shape}"
        )
    return ""
