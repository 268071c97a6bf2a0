"""What a memory refuses to learn from: samples, labels and outputs that cannot be used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.memory.schema import Schema
from carousel.strategies.raw import RawSource

__all__ = ["check_output", "check_samples", "check_schema"]

_CHECK_ROWS = 4096


def check_samples(source: RawSource) -> int:
    """The largest label of an experience.

    Raises:
        BadInputError: a label is negative, or a sample holds NaN or infinity.
    """
    if int(source.labels.min()) < 0:
        raise BadInputError(
            f"the experience has label {int(source.labels.min())}", fix="number classes from 0"
        )
    if source.tensor_backed and source.rows(torch.tensor([0])).is_floating_point():
        for rows, x in source.batches(_CHECK_ROWS):
            bad = ~x.isfinite().flatten(1).all(1)
            if bad.any():
                row = int(rows[bad][0])
                raise BadInputError(
                    f"sample {row} of the experience holds NaN or infinity",
                    fix="clean or drop such samples",
                )
    return int(source.labels.max())


def check_schema(schema: Schema, source: RawSource, further: tuple[str, ...]) -> None:
    """Refuse an experience whose samples the memory, or the storage, has no place for.

    Args:
        schema: fields of the memory.
        source: samples of the experience.
        further: names of the fields that the method stores beside ``x``.

    Raises:
        SchemaMismatchError: names what differs and the way out.
    """
    names = {"x", *further}
    if set(schema.names) != names:
        lacks = ", ".join(sorted(names - set(schema.names)))
        what = f"lack the field {lacks}" if lacks else f"have the fields {', '.join(schema.names)}"
        raise SchemaMismatchError(
            f"the samples in storage {what}, and the method stores {', '.join(sorted(names))}",
            fix="upgrade them with `carousel export` and `carousel import --schema`, remove them "
            "with `carousel forget --all`, or use another storage",
        )
    Schema(tuple(f for f in schema.fields if f.name == "x")).validate(
        {"x": source.rows(torch.tensor([0]))}
    )


def check_output(output: Any, top_label: int, *, judged: bool) -> None:
    """Refuse outputs that a loss or a gate cannot use.

    Args:
        output: of the model.
        top_label: largest label of the experience.
        judged: whether a gate looks at it.

    Raises:
        BadInputError: a label has no output, or the output is no (n, classes).
    """
    logits = isinstance(output, Tensor) and output.ndim == 2
    if logits and top_label >= output.shape[1]:
        raise BadInputError(
            f"the experience has label {top_label} and the model {output.shape[1]} outputs",
            fix="give the model one output a class",
        )
    if judged and not logits:
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise BadInputError(
            f"the model gives {what}, which no gate can judge",
            fix="let it give logits (n, classes), or use swap=False",
        )
