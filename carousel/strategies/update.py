"""When samples of the stream reach storage and the memory: by experience, or batch by batch."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory import Carousel, SampleBatch
from carousel.storage.tier import ReadStatus
from carousel.strategies.raw import RawSource

__all__ = ["Update", "UpdateRule", "make_update"]

Ints: TypeAlias = npt.NDArray[np.int64]
UpdateRule: TypeAlias = Literal["experience", "batch"]

_SAVE_ROWS = 256


class Update(Protocol):
    """What happens with the samples of one experience, whose ids rise from `first_id`."""

    def begin(self, source: RawSource, first_id: int) -> None:
        """The experience starts."""
        ...

    def after_step(self, rows: Tensor | None) -> bool:
        """The model was trained on these (k,) rows of the source (None: not known).

        Returns:
            Whether the memory may have changed.
        """
        ...

    def end(self) -> None:
        """The experience is over."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint in the middle of an experience needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the middle of an experience; call it before `begin`."""
        ...


def make_update(rule: UpdateRule, carousel: Carousel) -> Update:
    """The rule of this name.

    Raises:
        BadInputError: there is no such rule.
    """
    if rule == "experience":
        return _ByExperience(carousel)
    if rule == "batch":
        return _ByBatch(carousel)
    raise BadInputError(f"update is {rule!r}", fix='use "experience" or "batch"')


class _ByExperience:
    """All samples are saved in the background from the start; the memory changes at the end."""

    def __init__(self, carousel: Carousel) -> None:
        self._carousel = carousel

    def begin(self, source: RawSource, first_id: int) -> None:
        _settle(self._carousel, source)
        self._source, self._first_id = source, first_id
        memory, every_row = self._carousel, torch.split(torch.arange(len(source)), _SAVE_ROWS)
        memory.save_in_background(_samples(memory, source, rows, first_id) for rows in every_row)

    def after_step(self, rows: Tensor | None) -> bool:  # noqa: ARG002 - of the protocol
        return False

    def end(self) -> None:
        source = self._source
        self._carousel.admit(
            np.arange(self._first_id, self._first_id + len(source)),
            source.labels.numpy(),
            source.tasks.numpy(),
            fetch=lambda rows: {"x": source.rows(torch.from_numpy(rows))},
        )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class _ByBatch:
    """Each sample is saved and offered to the memory after its first training step."""

    def __init__(self, carousel: Carousel) -> None:
        self._carousel = carousel
        self._first_id = -1
        self._seen = torch.zeros(0, dtype=torch.bool)
        self._resuming = False

    def begin(self, source: RawSource, first_id: int) -> None:
        _settle(self._carousel, source)
        self._source = source
        if first_id != self._first_id or len(self._seen) != len(source):
            self._first_id = first_id
            self._seen = torch.zeros(len(source), dtype=torch.bool)
        elif self._resuming:
            self._hide_unseen()
        self._resuming = False

    def after_step(self, rows: Tensor | None) -> bool:
        assert rows is not None
        fresh = rows[~self._seen[rows]]
        if len(fresh) == 0:
            return False
        self._seen[fresh] = True
        ids, x = _rows_of(self._carousel, self._source, fresh, self._first_id)
        labels = self._source.labels[fresh].numpy()
        tasks = self._source.tasks[fresh].numpy()
        self._carousel.save(ids, labels, tasks, x=x)
        self._carousel.admit(
            ids, labels, tasks, fetch=lambda admitted: {"x": x[torch.from_numpy(admitted)]}
        )
        return True

    def end(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"first_id": self._first_id, "seen": self._seen.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first_id = int(state["first_id"])
        self._seen = state["seen"].clone()
        self._resuming = True

    def _hide_unseen(self) -> None:
        """Samples that were saved after the checkpoint do not take part until they come again."""
        self._carousel.tier.hide_from(self._first_id)
        for rows in torch.split(self._seen.nonzero().squeeze(1), _SAVE_ROWS):
            batch = _samples(self._carousel, self._source, rows, self._first_id)
            self._carousel.save(batch.ids, batch.labels, batch.tasks, x=batch.fields["x"])


def _settle(carousel: Carousel, source: RawSource) -> None:
    # What is queued cannot be read back, see `_as_stored`.
    if not source.repeatable:
        carousel.end_experience()


def _samples(carousel: Carousel, source: RawSource, rows: Tensor, first_id: int) -> SampleBatch:
    ids, x = _rows_of(carousel, source, rows, first_id)
    return SampleBatch(ids, source.labels[rows].numpy(), source.tasks[rows].numpy(), {"x": x})


def _rows_of(
    carousel: Carousel, source: RawSource, rows: Tensor, first_id: int
) -> tuple[Ints, Tensor]:
    ids = first_id + rows.numpy()
    x = source.rows(rows)
    if not source.repeatable:
        _as_stored(carousel, ids, x)
    return ids, x


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
