"""Finding a thing by the name a user typed, with the nearest name where it is misspelt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from carousel.errors import BadInputError
from carousel.spelling import nearest

__all__ = ["lookup"]

T = TypeVar("T")


def lookup(kind: str, name: object, choices: Mapping[str, T]) -> T:
    """The choice of this name.

    Args:
        kind: what is looked up, for the message, such as ``"gate"``.
        name: what the user gave.
        choices: what there is.

    Raises:
        BadInputError: there is none; suggests the nearest name, or lists all.
    """
    if isinstance(name, str) and name in choices:
        return choices[name]
    near = nearest(str(name), choices)
    fix = f"did you mean {near}?" if near else f"use one of {', '.join(choices)}"
    raise BadInputError(f"unknown {kind} {name!r}", fix=fix)
