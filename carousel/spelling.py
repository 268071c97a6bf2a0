"""What a user may have meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest"]

_BEGINNING = 3
"""Fewer letters say too little to complete."""


def nearest(name: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The choice that looks most like the name, upper and lower case being alike.

    A choice that begins with the name goes before one that only resembles it.

    Args:
        name: what was typed.
        choices: what there is.
        cutoff: least likeness, 0 (anything) to 1 (the same).

    Returns:
        One of the choices, None where no one is near.

    Example:
        >>> nearest("der", ["er", "der++"]), nearest("ICARL", ["icarl"]), nearest("x", ["er"])
        ('der++', 'icarl', None)
    """
    by_lower = {choice.lower(): choice for choice in choices}
    typed = name.lower()
    if len(typed) >= _BEGINNING:
        begun = {lower: choice for lower, choice in by_lower.items() if lower.startswith(typed)}
        by_lower = begun or by_lower
        cutoff = 0.0 if begun else cutoff
    near = get_close_matches(typed, by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None
