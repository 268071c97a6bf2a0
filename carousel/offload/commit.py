"""The commit record: which records belong together, and all else that a step leaves behind.

It lies in an LMDB storage of the toolkit, beside the states' file: that is where the owner's lock,
the marker of a clean end, and the checks of foreign and damaged files come from. One transaction
replaces the record whole. With several ranks each has a storage of its own, numbers its commits as
the others do, and keeps the last but one: a kill may leave some of them one commit ahead, and a
recovery takes the newest that all of them have.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from carousel.errors import BadInputError, StorageCorruptedError
from carousel.offload.places import Committed
from carousel.storage.lmdb.registry import is_open
from carousel.storage.lmdb.tier import LMDBTier
from carousel.storage.tier import Durability, StorageTier

__all__ = [
    "Commit",
    "CommitLog",
    "Moment",
    "is_commit_log",
    "pack_payload",
    "read_commit",
    "unpack_payload",
]

logger = logging.getLogger("carousel.offload")

_PLAN, _RECORD, _PAYLOAD = _KEYS = "offload/plan", "offload/commit", "offload/payload"
_BEFORE = tuple(f"{key}-before" for key in _KEYS)
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """What the calling thread knows at a commit.

    Args:
        step: steps of the optimizer so far.
        param_steps: Adam's step count of each parameter, None where it has no states.
        groups: hyper-parameters of each group, plain types, and ``count`` of its parameters.
        payload: of the caller; see `pack_payload`.
    """

    step: int
    param_steps: list[float | None]
    groups: list[dict[str, Any]]
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Commit:
    """A moment, and where the records of that moment are.

    Args:
        plan: digest of the plan.
        file: name of the states' file in its folder.
        moment: what the calling thread knew.
        chunks: where the records are.
        written_bytes: of records, to the folder since it was made.
        number: of the commit, from 1, where several ranks have to find the same one; else 0.
    """

    plan: str
    file: str
    moment: Moment
    chunks: Committed
    written_bytes: int = 0
    format: int = field(default=_FORMAT)
    number: int = 0


class CommitLog:
    """The newest commit of a folder, and the plan that it belongs to.

    Args:
        folder: made when missing.
        durability: ``durable`` and ``bounded`` survive power loss, ``process`` a kill.
        ranks: number the commits, and keep the last but one.

    Raises:
        BadInputError: another optimizer, or a tier, of this process has the folder.
        StorageLockedError: another process has it.
        StorageError: what is there cannot be used.
    """

    def __init__(self, folder: Path, durability: Durability, *, ranks: bool = False) -> None:
        if is_open(folder):
            raise BadInputError(
                f"{folder} is open in this process already",
                fix="close the other optimizer or tier, or give another path",
            )
        # `bounded` would let the last transaction go with the power, and the records that the one
        # before it names are overwritten by then.
        kind: Durability = "durable" if durability == "bounded" else durability
        self._tier = LMDBTier(folder, durability=kind, sync=True)
        self._ranks = ranks
        self._newest: int | None = None

    @property
    def newest(self) -> int:
        """Number of the newest commit, 0 if there is none or it has none.

        Raises:
            StorageCorruptedError: the record cannot be read.
        """
        if self._newest is None:
            found = self.read()
            self._newest = 0 if found is None else found[1].number
        return self._newest

    @property
    def empty(self) -> bool:
        """Whether nothing was ever committed, neither states nor samples."""
        return self._tier.get_meta(_PLAN) is None and self._tier.high_water == 0

    def read(self) -> tuple[dict[str, Any], Commit] | None:
        """The plan as plain types and the newest commit; None when there is none.

        Raises:
            StorageCorruptedError: the record cannot be read.
        """
        return read_commit(self._tier, self._tier.path)

    def publish(self, commit: Commit, plan: Mapping[str, Any] | None = None) -> None:
        """Replace the commit in one transaction, with the plan where it is a new one.

        Raises:
            StorageError: it could not be; the one before stays.
        """
        fields = asdict(replace(commit, moment=replace(commit.moment, payload=b"")))
        del fields["moment"]["payload"]
        del fields["number"]
        items: dict[str, bytes] = {}
        if self._ranks:
            fields["number"] = self.newest + 1
            items = self._copy(_KEYS, _BEFORE)
        items |= {_RECORD: _json(fields), _PAYLOAD: commit.moment.payload}
        if plan is not None:
            items[_PLAN] = _json(plan)
        self._tier.put_meta(items)
        self._newest = fields.get("number", 0)

    def has(self, number: int) -> bool:
        """Whether `go_back_to` can go to this commit.

        Raises:
            StorageCorruptedError: a record cannot be read.
        """
        if number == self.newest:
            return True
        found = read_commit(self._tier, self._tier.path, _BEFORE)
        return found is not None and found[1].number == number

    def go_back_to(self, number: int) -> None:
        """Forget a commit that is newer than this one, which is there.

        Raises:
            StorageError: it could not be written.
        """
        if number != self.newest:
            self._tier.put_meta(self._copy(_BEFORE, _KEYS))
            self._newest = number

    def _copy(self, keys: Sequence[str], to: Sequence[str]) -> dict[str, bytes]:
        values = [self._tier.get_meta(key) for key in keys]
        return {new: value for new, value in zip(to, values, strict=True) if value is not None}

    def close(self) -> None:
        """Give the folder back."""
        self._tier.close()


def read_commit(
    tier: StorageTier, folder: Path, keys: Sequence[str] = _KEYS
) -> tuple[dict[str, Any], Commit] | None:
    """The plan as plain types and the newest commit in a storage; None when there is none.

    Args:
        tier: the storage, open for writing or for reading only.
        folder: what to call it in an error.
        keys: of plan, record and payload.

    Raises:
        StorageCorruptedError: the record cannot be read.
    """
    plan, record, payload = (tier.get_meta(key) for key in keys)
    if plan is None or record is None:
        return None
    try:
        saved, fields = json.loads(plan), json.loads(record)
        moment = Moment(**fields.pop("moment"))
        chunks = Committed(**{k: tuple(v) for k, v in fields.pop("chunks").items()})
        commit = Commit(moment=moment, chunks=chunks, **fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageCorruptedError(
            f"the commit record of {folder} cannot be read; restore a copy, or start "
            "anew with another path"
        ) from error
    if commit.format != _FORMAT:
        raise StorageCorruptedError(
            f"the commit record of {folder} has format {commit.format} and this "
            f"version reads {_FORMAT}; update Carousel"
        )
    return saved, replace(commit, moment=replace(moment, payload=payload or b""))


def is_commit_log(tier: StorageTier) -> bool:
    """Whether an optimizer's commits are in a storage."""
    return tier.get_meta(_PLAN) is not None


def pack_payload(payload: Mapping[str, Any] | None) -> bytes:
    """What the caller wants back with the states: plain types and tensors, nested.

    Example:
        >>> unpack_payload(pack_payload({"epoch": 3}))
        {'epoch': 3}
    """
    if payload is None:
        return b""
    import torch

    buffer = io.BytesIO()
    torch.save(dict(payload), buffer)
    return buffer.getvalue()


def unpack_payload(payload: bytes) -> dict[str, Any] | None:
    """What `pack_payload` was given; nothing in it is executed.

    Raises:
        StorageCorruptedError: it cannot be read.
    """
    if not payload:
        return None
    import torch

    try:
        loaded: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
    except Exception as error:
        raise StorageCorruptedError(f"the payload of the commit cannot be read: {error}") from error
    return loaded


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
