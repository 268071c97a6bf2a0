"""Samples stored with the logits of a step, and logits that are brought up to date later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.memory import Carousel
from carousel.memory.schema import Schema
from carousel.memory.seeds import generator
from carousel.storage.record import FieldSpec
from carousel.strategies.dark import LOGIT_FIELDS, stored_logits
from carousel.strategies.raw import RawSource
from carousel.strategies.update import ByBatch

__all__ = ["LOGIT_RULES", "ByBatchWithLogits", "LogitRule", "check_logit_schema", "some_of_each"]

Ints: TypeAlias = npt.NDArray[np.int64]
LogitRule: TypeAlias = Literal["first", "latest", "refresh"]
"""Which logits a record keeps; see `DERPlusPlus`."""

LOGIT_RULES: tuple[LogitRule, ...] = ("first", "latest", "refresh")

_ROWS = 256


class ByBatchWithLogits(ByBatch):
    """Each sample is saved after its first training step, with the logits of that step.

    Sample and logits are one record, so that storage and slots hold both or neither. Where logits
    are revised later (``rule`` other than ``"first"``) those of the experience at hand are kept,
    (n, width) float32, and are part of a checkpoint: a run that goes on within the experience
    finds the logits of the checkpoint, not those of steps that are done again.

    Attributes:
        classes: of the whole stream, as far as the strategy knows.

    Args:
        carousel: the memory.
        logits: gives those of the stream's rows of the mini-batch just trained on, (k, C).
        width: logits a record has room for; None takes the number of the first ones, or
            `classes` if that is more.
        rule: which logits a record keeps.
        recompute: from raw samples (n, *shape) and their (n,) tasks to logits (n, C), for
            ``"refresh"``.
        per_class: samples of a class whose logits ``"refresh"`` recomputes.
        seed: of the choice of these.
    """

    def __init__(
        self,
        carousel: Carousel,
        logits: Callable[[], Tensor],
        *,
        width: int | None,
        rule: LogitRule,
        recompute: Callable[[Tensor, Tensor], Tensor],
        per_class: int,
        seed: int,
    ) -> None:
        super().__init__(carousel, self._of_picked_rows, LOGIT_FIELDS)
        self._logits = logits
        self._width = width
        self.classes = 0
        self._rule = rule
        self._recompute = recompute
        self._per_class = per_class
        self._seed = seed
        self._kept: dict[str, Tensor] = {}

    @property
    def width(self) -> int | None:
        """Logits a record has room for; None while that is open."""
        schema = self.carousel.schema
        return self._width if schema is None else _width_of(schema)

    def check_outputs(self, outputs: int) -> None:
        """Refuse a model with more outputs than a record has room for.

        Raises:
            BadInputError: names both numbers and the fix.
        """
        width = self.width
        if width is not None and outputs > width:
            raise BadInputError(
                f"the model has {outputs} outputs and a record has room for {width} logits",
                fix="give n_classes=, the classes of the whole stream, and a fresh storage",
            )

    def begin(self, source: RawSource, ids: Ints) -> None:
        """Put the logits of the checkpoint back, when a run goes on within the experience."""
        met = self._seen
        super().begin(source, ids)
        if self._seen is not met:
            self._kept = {}
        elif self._kept:
            for rows in torch.split(self._met_rows(), _ROWS):
                fields = {name: kept[rows] for name, kept in self._kept.items()}
                self.carousel.revise(self.ids[rows.numpy()], **fields)

    def after_step(self, rows: Tensor | None) -> bool:
        """Save and offer the rows met for the first time; ``"latest"`` revises the others."""
        assert rows is not None
        again = self._seen[rows]
        changed = super().after_step(rows)
        if self._rule == "latest" and again.any():
            self._revise(rows[again], self._of_picked_rows(again))
        if self._rule != "first" and not again.all():
            self._keep(rows[~again], self._of_picked_rows(~again))
        return changed

    def end(self) -> None:
        """Recompute, for ``"refresh"``, the logits of some samples of the experience."""
        if self._rule != "refresh":
            return
        met = self._met_rows()
        rng = generator(self._seed, f"refresh {self.ids[0]}")
        chosen = met[some_of_each(self.source.labels[met], self._per_class, rng)]
        for rows in torch.split(chosen, _ROWS):
            fields, found = self.carousel.read(self.ids[rows.numpy()])
            there = torch.from_numpy(found)
            if there.any():
                read = rows[there]
                logits = self._recompute(fields["x"][there], self.source.tasks[read])
                self._revise(read, self._fields_of(logits))

    def state_dict(self) -> dict[str, Any]:
        """Which samples were met, and their logits where these may be revised."""
        kept = {name: field.clone() for name, field in self._kept.items()}
        return {**super().state_dict(), "kept": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Update`."""
        super().load_state_dict(state)
        self._kept = {name: field.clone() for name, field in state["kept"].items()}

    def _of_picked_rows(self, mask: Tensor) -> dict[str, Tensor]:
        logits = self._logits()
        return self._fields_of(logits[mask.to(logits.device)])

    def _fields_of(self, logits: Tensor) -> dict[str, Tensor]:
        return stored_logits(logits, self.width or max(logits.shape[1], self.classes))

    def _revise(self, rows: Tensor, fields: dict[str, Tensor]) -> None:
        self.carousel.revise(self.ids[rows.numpy()], **fields)
        self._keep(rows, fields)

    def _keep(self, rows: Tensor, fields: dict[str, Tensor]) -> None:
        for name, values in fields.items():
            if name not in self._kept:
                self._kept[name] = values.new_zeros(len(self._seen), *values.shape[1:])
            self._kept[name][rows] = values

    def _met_rows(self) -> Tensor:
        return self._seen.nonzero().squeeze(1)


def some_of_each(labels: Tensor, most: int, rng: np.random.Generator) -> Tensor:
    """At most so many of each class, uniformly: rows of (n,) labels, ascending.

    Example:
        >>> rows = some_of_each(torch.tensor([1, 0, 1, 1]), 2, np.random.default_rng(0))
        >>> len(rows), 1 in rows.tolist()
        (3, True)
    """
    mixed = torch.from_numpy(rng.permutation(len(labels)))
    order = mixed[torch.sort(labels[mixed], stable=True).indices]
    counts = torch.unique_consecutive(labels[order], return_counts=True)[1]
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return order[torch.arange(len(labels)) - first < most].sort().values


def check_logit_schema(schema: Schema, width: int | None) -> None:
    """Refuse a memory whose samples have no place for logits, or for fewer than are asked for.

    Args:
        schema: of the samples that a storage holds.
        width: logits that a record must have room for; None if that is open.

    Raises:
        SchemaMismatchError: names the commands that upgrade or empty the storage.
    """
    stored = {spec.name: spec for spec in schema.fields}
    logits = stored.get("logits")
    fits = (
        logits is not None
        and (logits.dtype, len(logits.shape)) == ("float32", 1)
        and (width is None or logits.shape[0] >= width)
        and stored.get("width") == FieldSpec("width", "int32", ())
    )
    if not fits:
        raise SchemaMismatchError(
            f"the storage holds samples with {schema}, and DER++ stores logits beside them",
            fix="upgrade a copy with `carousel export OLD FOLDER` and `carousel import FOLDER NEW "
            f"--schema logits:float32:{width or 'CLASSES'}=0 --schema width:int32:=0`, empty it "
            "with `carousel forget OLD --all`, or use another storage",
        )


def _width_of(schema: Schema) -> int | None:
    return next((spec.shape[0] for spec in schema.fields if spec.name == "logits"), None)
