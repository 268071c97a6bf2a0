"""Methods that need their object open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from carousel.errors import StorageClosedError

__all__ = ["while_open"]

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Any)


def while_open(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """Makes a method refuse, with `StorageClosedError`, an object whose ``_closed`` is true."""

    @functools.wraps(method)
    def call(self: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._closed:
            raise StorageClosedError(
                f"the {type(self).__name__} was closed; use it before close(), or open another"
            )
        return method(self, *args, **kwargs)

    return call
