"""How long the training thread is kept by the memory."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from carousel.memory.lifetime import while_open

__all__ = ["HasManagerTime", "timed"]

P = ParamSpec("P")
R = TypeVar("R")


class HasManagerTime(Protocol):
    """An object that adds up nanoseconds."""

    manager_ns: int


M = TypeVar("M", bound=HasManagerTime)


def timed(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """Adds the wall time of each call of a method to ``self.manager_ns``; see `while_open` too."""

    @functools.wraps(method)
    def call(self: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        start = time.perf_counter_ns()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.manager_ns += time.perf_counter_ns() - start

    return while_open(call)
