"""Admission: which samples hold a slot of the memory. One rule a file, one protocol."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from carousel.errors import BadInputError
from carousel.memory.admission.base import Admission, Assignment, SlotState, exactly
from carousel.memory.admission.checked import Checked
from carousel.memory.admission.class_balanced import ClassBalanced
from carousel.memory.admission.greedy import Greedy
from carousel.memory.admission.reservoir import Reservoir
from carousel.memory.admission.ring import Ring
from carousel.memory.names import lookup

__all__ = [
    "ADMISSIONS",
    "Admission",
    "Assignment",
    "ClassBalanced",
    "Greedy",
    "Reservoir",
    "Ring",
    "SlotState",
    "exactly",
    "make_admission",
]

ADMISSIONS: dict[str, Callable[[np.random.Generator], Admission]] = {
    "class-balanced": ClassBalanced,
    "reservoir": Reservoir,
    "ring": lambda rng: Ring(),  # noqa: ARG005 - a ring draws nothing
    "greedy": Greedy,
}
"""The rules by name; `class-balanced` is the default everywhere."""


def make_admission(rule: str | Admission, rng: np.random.Generator) -> Admission:
    """A rule by name, with its random numbers; an instance keeps its own.

    Of an object that is none of the rules here, every plan is checked.

    Raises:
        BadInputError: no rule has this name (the nearest one is suggested), or the object has no
            `plan`.

    Example:
        >>> make_admission("ring", np.random.default_rng(0)).__class__.__name__
        'Ring'
    """
    if isinstance(rule, str):
        return lookup("admission", rule, ADMISSIONS)(rng)
    if not isinstance(rule, Admission):
        raise BadInputError(
            f"admission is a {type(rule).__name__}",
            fix=f"give an Admission, or one of {', '.join(ADMISSIONS)}",
        )
    return rule if isinstance(rule, ClassBalanced | Greedy | Reservoir | Ring) else Checked(rule)
