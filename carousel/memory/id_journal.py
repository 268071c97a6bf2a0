"""Which ids the samples of an experience got, so that they get the same ones again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import index as as_int
from typing import SupportsIndex

from carousel.errors import BadInputError
from carousel.storage.tier import StorageTier

__all__ = ["IdJournal"]

_MAX_RUN_BYTES = 256


@dataclass(slots=True)
class _Stretch:
    """Experiences of equal size that followed one another, with their ids."""

    experience: int
    experiences: int
    first: int
    count: int

    def knows(self, experience: int) -> bool:
        return 0 <= experience - self.experience < self.experiences

    def first_of(self, experience: int) -> int:
        return self.first + (experience - self.experience) * self.count

    def goes_on_with(self, experience: int, first: int, count: int) -> bool:
        end = self.experience + self.experiences
        return (experience, first, count) == (end, self.first_of(end), self.count)


class IdJournal:
    """Gives out ids by run and experience, and keeps beside the records what it gave.

    An endless stream of equal experiences takes a few bytes in all, not a few an experience.

    Args:
        tier: where ids come from and the journal is kept.
    """

    def __init__(self, tier: StorageTier) -> None:
        self._tier = tier

    def reserve(self, run: str, experience: SupportsIndex, count: SupportsIndex) -> int:
        """The first of `count` consecutive ids; always the same for a run and experience.

        Raises:
            BadInputError: they were reserved with another count, or a value cannot be used.
        """
        experience, count = _whole("experience", experience), _whole("count", count)
        key = _key(run)
        stretches = [_Stretch(*row) for row in json.loads(self._tier.get_meta(key) or b"[]")]
        known = next((part for part in stretches if part.knows(experience)), None)
        if known is None:
            return self._give(key, stretches, experience, count)
        if known.count != count:
            raise BadInputError(
                f"experience {experience} of run {run!r} has {count} samples, "
                f"and had {known.count} when it was first seen",
                fix="use the same data to go on, or another run name or storage",
            )
        return known.first_of(experience)

    def _give(self, key: str, stretches: list[_Stretch], experience: int, count: int) -> int:
        first = self._tier.reserve_ids(count)
        for part in stretches:
            if part.goes_on_with(experience, first, count):
                part.experiences += 1
                break
        else:
            stretches.append(_Stretch(experience, 1, first, count))
        rows = [[p.experience, p.experiences, p.first, p.count] for p in stretches]
        self._tier.put_meta({key: json.dumps(rows, separators=(",", ":")).encode()})
        return first


def _key(run: str) -> str:
    name = run.encode(errors="replace") if isinstance(run, str) else b""
    if not 1 <= len(name) <= _MAX_RUN_BYTES:
        raise BadInputError(
            f"run is {run!r:.80}", fix=f"give a name of 1 to {_MAX_RUN_BYTES} bytes of UTF-8"
        )
    return f"ids/{name.decode()}"


def _whole(name: str, value: SupportsIndex) -> int:
    try:
        number = as_int(value)
    except TypeError:
        number = -1
    if number < 0:
        raise BadInputError(f"{name} is {value}", fix="give a whole number of at least 0")
    return number
