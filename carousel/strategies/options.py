"""Options of a method as they come from a command line or a file: of the right kind, or refused."""

from __future__ import annotations

from typing import Any

from carousel.errors import BadInputError

__all__ = ["check_option"]

_OPEN = {
    "batch_size_mem": int,
    "bias_epochs": int,
    "clip": float,
    "n_classes": int,
    "augment": None,
    "perturb": None,
}
"""Kinds of options that may be None; None for what can only be given in Python."""


def check_option(name: str, value: Any, default: Any) -> None:
    """Refuse a value that is of another kind than the option; its range is the method's affair.

    Args:
        name: of the option.
        value: as it was given.
        default: of the option, which tells its kind.

    Raises:
        BadInputError: names the value and the fix.

    Example:
        >>> check_option("temperature", 3, 2.0)
        >>> check_option("temperature", "warm", 2.0)
        Traceback (most recent call last):
        ...
        carousel.errors.BadInputError: temperature is 'warm': give a number
    """
    if name in _OPEN:
        if value is not None:
            _check(name, value, _OPEN[name], " or null")
    elif type(default) in (bool, int, float):
        _check(name, value, type(default), "")


def _check(name: str, value: Any, kind: type | None, more: str) -> None:
    if kind is None:
        fits, wanted = callable(value), "give a function, from Python"
    elif kind is bool:
        fits, wanted = isinstance(value, bool), "give true or false"
    else:
        kinds = (int, float) if kind is float else int
        fits = isinstance(value, kinds) and not isinstance(value, bool)
        wanted = "give a number" if kind is float else "give a whole number"
    if not fits:
        raise BadInputError(f"{name} is {value!r}", fix=f"{wanted}{more}")
