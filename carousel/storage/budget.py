"""Sizes that people write ("500", "64MiB", "50%") and the budget of a storage tier."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from carousel.errors import BadInputError

__all__ = ["Budget", "BudgetLike", "Size", "parse_budget", "parse_size"]


@dataclass(frozen=True, slots=True)
class Size:
    """A size as it was meant: a count of samples, bytes, or a fraction of something.

    Args:
        unit: ``"count"``, ``"bytes"`` or ``"fraction"``.
        value: whole samples, whole bytes, or a number above 0 and up to 1.
    """

    unit: Literal["count", "bytes", "fraction"]
    value: float


@dataclass(frozen=True, slots=True)
class Budget:
    """What a storage tier may hold; every limit that is given counts.

    Args:
        max_bytes: bytes on the medium, at least 1.
        max_records: records, at least 1.
        disk_fraction: share of the free disk, above 0 and up to 1; becomes bytes by `resolve`.

    Raises:
        BadInputError: a limit is out of range.

    Example:
        >>> Budget(max_records=5000).max_records
        5000
    """

    max_bytes: int | None = None
    max_records: int | None = None
    disk_fraction: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_records"):
            limit = getattr(self, name)
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise BadInputError(
                    f"{name} is {limit!r}", fix="give a whole number of 1 or more, or leave it out"
                )
        if self.disk_fraction is not None and not 0 < self.disk_fraction <= 1:
            raise BadInputError(
                f"disk_fraction is {self.disk_fraction}", fix="give a number above 0 and up to 1"
            )

    @property
    def unlimited(self) -> bool:
        """True when nothing is limited."""
        return self == Budget()

    def resolve(self, path: str | Path, used_bytes: int = 0) -> Budget:
        """The same budget with the disk's share turned into bytes.

        Args:
            path: where the storage is or will be; the nearest folder that exists is asked.
            used_bytes: what the storage holds there already; it counts as free.
        """
        if self.disk_fraction is None:
            return self
        free = shutil.disk_usage(_existing(Path(path))).free + used_bytes
        share = max(1, int(free * self.disk_fraction))
        limit = share if self.max_bytes is None else min(share, self.max_bytes)
        return replace(self, max_bytes=limit, disk_fraction=None)


BudgetLike: TypeAlias = Budget | int | str | None


def parse_budget(value: BudgetLike, *, name: str = "storage_budget") -> Budget:
    """The budget that a user wrote: a number of records, bytes, or a share of the free disk.

    Args:
        value: ``5000`` or ``"5000"`` (records), ``"64MiB"`` (bytes), ``"50%"`` (of the free disk),
            a `Budget`, or None for no limit.
        name: what to call the value in an error.

    Raises:
        BadInputError: the value is none of these, or not above 0.

    Example:
        >>> parse_budget("64MiB")
        Budget(max_bytes=67108864, max_records=None, disk_fraction=None)
    """
    if value is None:
        return Budget()
    if isinstance(value, Budget):
        return value
    size = parse_size(value, name=name, percent=True)
    if size.unit == "fraction":
        return Budget(disk_fraction=size.value)
    if size.unit == "bytes":
        return Budget(max_bytes=int(size.value))
    return Budget(max_records=int(size.value))


def parse_size(value: int | str, *, name: str = "size", percent: bool = False) -> Size:
    """What a person meant by a size.

    ``KB``, ``MB``, ``GB``, ``TB`` are powers of 1000; ``KiB`` and so on powers of 1024; ``B`` is
    bytes. A bare whole number counts samples.

    Args:
        value: such as ``500``, ``"500"``, ``"64MiB"``, ``"1.5 GiB"``, ``"50%"``.
        name: what to call the value in an error.
        percent: whether a share makes sense here.

    Raises:
        BadInputError: the value cannot be read, or is not above 0.

    Example:
        >>> parse_size("1.5KiB")
        Size(unit='bytes', value=1536)
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer | str):
        raise _unreadable(name, value, percent)
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise _unreadable(name, value, percent)
    number, unit = float(match["number"]), match["unit"].lower()
    size = _size(number, unit, percent)
    if size is None:
        raise _unreadable(name, value, percent)
    if size.value <= 0 or (size.unit == "fraction" and size.value > 1):
        limit = " and at most 100%" if size.unit == "fraction" else ""
        raise BadInputError(f"{name} is {value}", fix=f"give a size above 0{limit}")
    return size


_SIZE = re.compile(r"\s*(?P<number>-?\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*|%)\s*")
_BYTES = {"b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def _size(number: float, unit: str, percent: bool) -> Size | None:
    if not isfinite(number):
        return None
    if unit == "%":
        return Size("fraction", number / 100) if percent else None
    if unit == "":
        return Size("count", int(number)) if number.is_integer() else None
    if unit in _BYTES:
        return Size("bytes", int(number * _BYTES[unit]))
    return None


def _unreadable(name: str, value: object, percent: bool) -> BadInputError:
    share = ', a share like "50%"' if percent else ""
    return BadInputError(
        f"{name} is {value!r}", fix=f'give a number of samples like 500, bytes like "64MiB"{share}'
    )


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
