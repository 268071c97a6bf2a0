"""When samples of the stream reach storage and the memory: by experience, or batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.memory import Carousel, SampleBatch
from carousel.storage.tier import ReadStatus
from carousel.strategies.raw import RawSource

__all__ = ["ByBatch", "ByExperience", "Extra", "Update", "UpdateRule", "make_update"]

Ints: TypeAlias = npt.NDArray[np.int64]
Extra: TypeAlias = Callable[[Tensor], Mapping[str, Tensor]]
"""Takes a (k,) bool mask over the stream's rows of the mini-batch, gives further fields of the
rows that it picks, each (picked, *shape)."""

_SAVE_ROWS = 256


class Update(Protocol):
    """What happens with the samples of one experience.

    Attributes:
        by_batch: whether `after_step` must be told rows.
        fields: names of the fields that are stored beside ``x``.
    """

    by_batch: bool
    fields: tuple[str, ...]

    def begin(self, source: RawSource, ids: Ints) -> None:
        """The experience starts.

        Args:
            source: its samples.
            ids: (n,) ascending ids of its rows.
        """
        ...

    def after_step(self, rows: Tensor | None) -> bool:
        """The model was trained on these (k,) rows of the source (None: not known).

        Returns:
            Whether the memory may have changed.
        """
        ...

    def end(self) -> None:
        """The experience is over, and what was saved is committed."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint in the middle of an experience needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the middle of an experience; call it before `begin`."""
        ...


UpdateRule: TypeAlias = Literal["experience", "batch"] | Callable[[Carousel], Update]


def make_update(rule: UpdateRule | None, carousel: Carousel) -> Update:
    """The rule of this name (by experience for None), or what the callable makes."""
    if callable(rule):
        return rule(carousel)
    return ByBatch(carousel) if rule == "batch" else ByExperience(carousel)


class ByExperience:
    """All samples are saved in the background from the start; the memory changes at the end.

    A method with another idea of who gets a slot overrides `end`.

    Args:
        carousel: the memory.

    Attributes:
        carousel: the memory.
        source: samples of the experience at hand.
        ids: (n,) their ids.
    """

    by_batch = False
    fields: tuple[str, ...] = ()

    def __init__(self, carousel: Carousel) -> None:
        self.carousel = carousel

    def begin(self, source: RawSource, ids: Ints) -> None:
        """Save every sample in the background."""
        _settle(self.carousel, source)
        self.source, self.ids = source, ids
        memory, every_row = self.carousel, torch.split(torch.arange(len(source)), _SAVE_ROWS)
        memory.save_in_background(_samples(memory, source, rows, ids) for rows in every_row)

    def after_step(self, rows: Tensor | None) -> bool:  # noqa: ARG002 - of the protocol
        """Nothing happens within an experience."""
        return False

    def end(self) -> None:
        """Let the samples compete for slots by the memory's admission rule."""
        self.carousel.admit(
            self.ids,
            self.source.labels.numpy(),
            self.source.tasks.numpy(),
            fetch=self.fetch,
        )

    def fetch(self, rows: Ints) -> dict[str, Tensor]:
        """The fields of (k,) rows of the source."""
        return {"x": self.source.rows(torch.from_numpy(rows))}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: saving again what is saved is fine."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to go on from."""


class ByBatch:
    """Each sample is saved and offered to the memory after its first training step.

    Args:
        carousel: the memory.
        extra: gives fields that are stored beside ``x``, such as the logits of the step.
        fields: the names of these.

    Attributes:
        carousel: the memory.
        source: samples of the experience at hand.
        ids: (n,) their ids.
    """

    by_batch = True

    def __init__(
        self, carousel: Carousel, extra: Extra | None = None, fields: tuple[str, ...] = ()
    ) -> None:
        self.carousel = carousel
        self.fields = fields
        self._extra = extra
        self._first_id = -1
        self._seen = torch.zeros(0, dtype=torch.bool)
        self._resuming = False

    def begin(self, source: RawSource, ids: Ints) -> None:
        """Remember which samples were met, when a run goes on within the experience."""
        _settle(self.carousel, source)
        self.source, self.ids = source, ids
        if ids[0] != self._first_id or len(self._seen) != len(source):
            self._first_id = int(ids[0])
            self._seen = torch.zeros(len(source), dtype=torch.bool)
        elif self._resuming:
            self._hide_unseen()
        self._resuming = False

    def after_step(self, rows: Tensor | None) -> bool:
        """Save and offer the rows that are met for the first time."""
        assert rows is not None
        first = ~self._seen[rows]
        fresh = rows[first]
        if len(fresh) == 0:
            return False
        self._seen[fresh] = True
        ids, x = _rows_of(self.carousel, self.source, fresh, self.ids)
        fields = {"x": x}
        if self._extra is not None:
            fields |= self._extra(first)
            self._revise_known(ids, fields)
        labels = self.source.labels[fresh].numpy()
        tasks = self.source.tasks[fresh].numpy()
        self.carousel.save(ids, labels, tasks, **fields)
        self.carousel.admit(
            ids, labels, tasks, fetch=lambda admitted: _take(fields, torch.from_numpy(admitted))
        )
        return True

    def end(self) -> None:
        """Everything is in its place already."""

    def state_dict(self) -> dict[str, Any]:
        """Which samples of the experience were met."""
        return {"first_id": self._first_id, "seen": self._seen.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Update`."""
        self._first_id = int(state["first_id"])
        self._seen = state["seen"].clone()
        self._resuming = True

    def _revise_known(self, ids: Ints, fields: Mapping[str, Tensor]) -> None:
        """A run that was killed may have stored later samples with what its model gave them."""
        known = self.carousel.tier.contains(ids)
        if known.any():
            mask = torch.from_numpy(known)
            self.carousel.revise(ids[known], **{name: fields[name][mask] for name in self.fields})

    def _hide_unseen(self) -> None:
        """Samples that were saved after the checkpoint do not take part until they come again."""
        self.carousel.tier.hide_from(self._first_id)
        for rows in torch.split(self._seen.nonzero().squeeze(1), _SAVE_ROWS):
            batch = _samples(self.carousel, self.source, rows, self.ids)
            if self.fields:
                batch = _stored(self.carousel, batch)
            if len(batch.labels):
                self.carousel.save(batch.ids, batch.labels, batch.tasks, **batch.fields)


def _take(fields: Mapping[str, Tensor], rows: Tensor) -> dict[str, Any]:
    return {name: field[rows] for name, field in fields.items()}


def _settle(carousel: Carousel, source: RawSource) -> None:
    # What is queued cannot be read back, see `_as_stored`.
    if not source.repeatable:
        carousel.end_experience()


def _samples(carousel: Carousel, source: RawSource, rows: Tensor, ids: Ints) -> SampleBatch:
    some, x = _rows_of(carousel, source, rows, ids)
    return SampleBatch(some, source.labels[rows].numpy(), source.tasks[rows].numpy(), {"x": x})


def _rows_of(carousel: Carousel, source: RawSource, rows: Tensor, ids: Ints) -> tuple[Ints, Tensor]:
    some = ids[rows.numpy()]
    x = source.rows(rows)
    if not source.repeatable:
        _as_stored(carousel, some, x)
    return some, x


def _stored(carousel: Carousel, batch: SampleBatch) -> SampleBatch:
    """Those of the samples that are stored, with all their fields."""
    assert carousel.schema is not None
    assert batch.ids is not None
    fields = carousel.schema.empty(len(batch.ids))
    status = carousel.tier.get_into(
        batch.ids, carousel.schema.views(fields), np.arange(len(batch.ids))
    )
    known = status == ReadStatus.OK
    labels, tasks = np.asarray(batch.labels)[known], np.asarray(batch.tasks)[known]
    return SampleBatch(batch.ids[known], labels, tasks, _take(fields, torch.from_numpy(known)))


def _as_stored(carousel: Carousel, ids: Ints, x: Tensor) -> None:
    """Let samples that were stored before be what they were then: a record never changes."""
    schema = carousel.schema
    if schema is None:
        return
    stored = schema.empty(len(ids))
    status = carousel.tier.get_into(ids, schema.views(stored), np.arange(len(ids)))
    known = torch.from_numpy(status == ReadStatus.OK)
    if known.any():
        x[known] = stored["x"][known]
