"""Names that a package imports when they are first used, so that importing it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], also: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        homes: the public names by the sub-module that defines them.
        also: public names that the package defines itself.

    Example:
        >>> get, names = lazy_names("carousel", {"errors": ["BadInputError"]})
        >>> get("BadInputError").__name__, names()
        ('BadInputError', ['BadInputError'])
    """
    modules = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted([*modules, *also])

    return get, names
