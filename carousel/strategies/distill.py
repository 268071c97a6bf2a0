"""How much a method that distils listens to the model it was: one option for all of them.

The methods' own weights were tuned for memories that forget. Where swapping brings old samples
back, a strong pull towards an older model works against what it adds, and a weight of 0.1 to 0.3
was found best (Lee et al., "CarM", DAC 2022).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

from carousel.errors import BadInputError

__all__ = ["DistillWeight", "Factors", "parse_distill_weight", "weights"]

DistillWeight: TypeAlias = Literal["original", "incremental"] | float
"""``"original"``: the method's own formula. ``"incremental"``: the share of old classes among all
classes. A number from 0 to 1: that share for ever; 0 does not distil."""


class Factors(NamedTuple):
    """The loss is ``distill * (distillation) + hard * (loss against the labels)``."""

    distill: float
    hard: float


def parse_distill_weight(value: object) -> DistillWeight:
    """The option as it was meant; numbers may come as text.

    Raises:
        BadInputError: it is none of the words and no number from 0 to 1.

    Example:
        >>> parse_distill_weight("incremental"), parse_distill_weight("0.25")
        ('incremental', 0.25)
    """
    if value == "original":
        return "original"
    if value == "incremental":
        return "incremental"
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise BadInputError(
            f"distill_weight is {value!r}",
            fix='give "original", "incremental" or a number from 0 to 1',
        )
    return number


def weights(value: DistillWeight, old: int, total: int) -> Factors | None:
    """The factors of the two terms of the loss, or None where the method's own formula rules.

    Args:
        value: of `parse_distill_weight`.
        old: classes that the older model knows; with none there is nothing to distil.
        total: all classes seen, the old ones among them.

    Example:
        >>> weights("incremental", old=4, total=5), weights(0.3, old=0, total=5)
        (Factors(distill=0.8, hard=0.2), Factors(distill=0.0, hard=1.0))
    """
    if value == "original":
        return None
    if old == 0:
        return Factors(0.0, 1.0)
    if value == "incremental":
        return Factors(old / total, (total - old) / total)
    return Factors(value, 1.0 - value)
