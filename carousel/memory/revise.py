"""New values for fields of samples that were saved already, in slots and storage alike."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.memory.convert import to_numpy, to_tensor
from carousel.memory.lookup import read_samples
from carousel.memory.schema import Schema
from carousel.memory.slab import Slab
from carousel.storage.tier import StorageTier

__all__ = ["new_values", "revise_samples"]

Ints = npt.NDArray[np.int64]
Values = dict[str, npt.NDArray[np.generic]]


def new_values(
    schema: Schema, ids: Ints, fields: Mapping[str, Tensor | npt.NDArray[np.generic]]
) -> Values:
    """Checked values of some fields for (n,) ids, as arrays.

    Raises:
        SchemaMismatchError: a field is unknown, or has another shape or dtype.
        BadInputError: another number of rows, NaN, or an id that is given twice.
    """
    unknown = sorted(set(fields) - set(schema.names))
    if unknown or not all(isinstance(value, Tensor | np.ndarray) for value in fields.values()):
        raise SchemaMismatchError(
            f"the fields {sorted(fields)} are to be revised, samples have {list(schema.names)}",
            fix="give tensors or arrays of fields that samples have",
        )
    if len(np.unique(ids)) < len(ids):
        raise BadInputError("an id is given twice", fix="revise every sample once a call")
    if not fields:
        return {}
    part = Schema(tuple(spec for spec in schema.fields if spec.name in fields))
    if part.validate(fields) != len(ids):
        raise BadInputError(f"the fields are not of {len(ids)} rows", fix="give one row an id")
    part.check_finite(fields)
    return {name: np.ascontiguousarray(to_numpy(to_tensor(v))) for name, v in fields.items()}


def revise_samples(slab: Slab, tier: StorageTier, ids: Ints, values: Values) -> int:
    """Rewrite fields of (n,) ids wherever they are; returns how many samples there were.

    Nothing may be in flight or queued. Storage comes first: slots follow what it holds.
    """
    slots, stored = slab.slots_of(ids), tier.contains(ids)
    try:
        tier.revise_many(ids[stored], {name: value[stored] for name, value in values.items()})
    except BaseException:  # some groups may be written
        _follow(slab, tier, ids[stored], slots[stored])
        raise
    resident = slots >= 0
    slab.overwrite(slots[resident], {name: value[resident] for name, value in values.items()})
    return int(np.count_nonzero(resident | tier.contains(ids)))


def _follow(slab: Slab, tier: StorageTier, ids: Ints, slots: Ints) -> None:
    """Give residents the values that storage holds, as far as it can be read."""
    ids, slots = ids[slots >= 0], slots[slots >= 0]
    fields, found = read_samples(slab, tier, ids, skip_slots=True)
    values = slab.schema.views(fields)
    slab.overwrite(slots[found], {name: value[found] for name, value in values.items()})
