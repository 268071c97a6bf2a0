"""The small value beside the records that says which fields they have; the memory writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from carousel.storage.record import FieldSpec

__all__ = ["SCHEMA", "extend_note"]

SCHEMA = "schema"
"""Meta key of the fields that all samples of a storage have: a JSON list of name, dtype and shape.

Empty for a storage that was emptied: its next samples may have other fields.
"""


def extend_note(note: bytes, added: Sequence[FieldSpec]) -> bytes:
    """The note of samples that got further fields; unchanged if it is none of the memory's.

    Example:
        >>> extend_note(b'[["x", "uint8", [8, 8]]]', [FieldSpec("width", "int32", ())])
        b'[["x", "uint8", [8, 8]], ["width", "int32", []]]'
    """
    rows = json.loads(note) if note else []
    if not isinstance(rows, list) or not rows:
        return note
    there = {row[0] for row in rows}
    rows += [[s.name, s.dtype, list(s.shape)] for s in added if s.name not in there]
    return json.dumps(rows).encode()
