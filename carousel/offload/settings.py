"""What a caller decides about RAM, storage and commits, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from carousel.errors import BadInputError
from carousel.offload.buckets import Landing
from carousel.offload.plan import WHOLE, Share
from carousel.offload.room import Wishes
from carousel.offload.states_file import IO_KINDS, IoKind
from carousel.storage.budget import parse_size
from carousel.storage.durability import Durability, check_durability

__all__ = ["OffloadSettings", "parse_budget_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """Options of `TieredAdamW` that are not the arithmetic's; see there.

    `landing` and `share` are no options: they follow from where the parameters are, and from the
    process group.

    Raises:
        BadInputError: one of them cannot be used.

    Example:
        >>> OffloadSettings(ram_budget="1MiB", storage="states").budget
        1048576
    """

    ram_budget: int | str | None = None
    storage: str | Path | None = None
    durability: Durability = "bounded"
    commit_every: int = 1
    clip_norm: float | None = None
    chunk_numel: int | None = None
    ring: int | None = None
    readers: int = 2
    io: IoKind = "auto"
    master: str = "auto"
    landing: Landing = "nowhere"
    delay: int = 0
    delay_from: int = 40
    update_in: str = "step"
    max_bytes_written: int | str | None = None
    share: Share = WHOLE

    def __post_init__(self) -> None:
        check_durability(self.durability)
        _one_of("io", self.io, IO_KINDS)
        _one_of("master", self.master, ("auto", "none"))
        _at_least("commit_every", self.commit_every, 0)
        _at_least("readers", self.readers, 1)
        _one_of("delay", self.delay, (0, 1))
        _at_least("delay_from", self.delay_from, 1)
        if self.delay and self.landing != "nowhere":
            raise BadInputError("delay is 1 and the model is on a device", fix="use delay=0 there")
        _one_of("update_in", self.update_in, ("step", "backward"))
        if self.update_in == "backward":
            self._check_in_backward()
        if self.share != WHOLE:
            self._check_shared()
        if self.ring is not None:
            _at_least("ring", self.ring, self.readers + 2)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise BadInputError(f"clip_norm is {self.clip_norm}", fix="give a number above 0")
        if self.ram_budget is not None:
            parse_budget_bytes(self.ram_budget)
        if self.max_bytes_written is not None:
            parse_budget_bytes(self.max_bytes_written, name="max_bytes_written")

    def _check_in_backward(self) -> None:
        """Refuse what has to see all gradients before the first update."""
        others = {
            "clip_norm is given": self.clip_norm is not None,
            "delay is 1": self.delay > 0,
            "the model is on a device": self.landing != "nowhere",
        }
        for what, so in others.items():
            if so:
                raise BadInputError(
                    f"update_in is 'backward' and {what}", fix="use update_in='step'"
                )

    def _check_shared(self) -> None:
        """Refuse what several processes do not do yet."""
        others = {
            "delay is 1": self.delay > 0,
            "update_in is 'backward'": self.update_in == "backward",
            "the model is on a device": self.landing != "nowhere",
        }
        for what, so in others.items():
            if so:
                raise BadInputError(
                    f"process_group has {self.share.world} processes and {what}",
                    fix="use delay=0, update_in='step' and a model on the CPU there",
                )

    @property
    def budget(self) -> int | None:
        """The budget in bytes, None for no limit."""
        return None if self.ram_budget is None else parse_budget_bytes(self.ram_budget)

    @property
    def write_limit(self) -> int | None:
        """Bytes that may be written to the storage in all, None for no limit."""
        limit = self.max_bytes_written
        return None if limit is None else parse_budget_bytes(limit, name="max_bytes_written")

    @property
    def folder(self) -> Path | None:
        """The storage's folder; with several processes this one's part of it."""
        path = self.path
        return path if path is None or self.share == WHOLE else path / self.share.folder

    @property
    def path(self) -> Path | None:
        """The storage's folder, of all processes."""
        return None if self.storage is None else Path(self.storage).expanduser().absolute()

    @property
    def common(self) -> tuple[object, ...]:
        """What several ranks have to agree on."""
        return self.recoverable, self.durability, self.commit_every, self.clip_norm, self.master

    @property
    def recoverable(self) -> bool:
        """Whether there are commits."""
        return self.storage is not None and self.durability != "ephemeral"

    def wishes(self, *, masters: bool, chunk_numel: int | None = None) -> Wishes:
        """What they say of RAM.

        Args:
            masters: keep fp32 values of 16-bit parameters.
            chunk_numel: elements of a chunk where the caller does not say.
        """
        return Wishes(
            budget=self.budget,
            chunk_numel=self.chunk_numel or chunk_numel,
            ring=self.ring,
            workers=self.readers + 1,
            masters=masters,
            recoverable=self.recoverable,
            stored=self.storage is not None,
            landing=self.landing,
            delayed=self.delay > 0,
            share=self.share,
        )


def parse_budget_bytes(value: int | str, *, name: str = "ram_budget") -> int:
    """A budget in bytes.

    Args:
        value: a whole number, or a size like ``"64MiB"``.
        name: what to call it in an error.

    Raises:
        BadInputError: it cannot be read, or is not above 0.
    """
    try:
        return int(parse_size(value, name=name).value)
    except BadInputError as error:
        raise BadInputError(error.problem, fix='give bytes like 67108864 or "64MiB"') from None


def _one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        listed = ", ".join(map(str, choices))
        raise BadInputError(f"{name} is {value!r}", fix=f"choose one of {listed}")


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInputError(f"{name} is {value!r}", fix=f"give a whole number of at least {least}")
