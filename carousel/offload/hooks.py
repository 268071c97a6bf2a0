"""Hooks on parameters, by which an optimizer is told within backward that a gradient was made."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor
from torch.utils.hooks import RemovableHandle

__all__ = ["Hooks", "Listener"]


class Listener(Protocol):
    """Wants to know of gradients."""

    def come(self, param: Tensor) -> None:
        """The parameter has its gradient, after all that one backward pass adds to it."""


class Hooks:
    """Hooks on parameters, which keep neither their owner nor a parameter alive.

    Args:
        owner: is told when a parameter's gradient was made.
    """

    def __init__(self, owner: Listener) -> None:
        self._owner = weakref.ref(owner)
        self._handles: dict[int, RemovableHandle] = {}
        weakref.finalize(owner, _remove, self._handles)

    def follow(self, params: Sequence[Tensor]) -> None:
        """Have hooks on these parameters and on no others; not within backward."""
        wanted = {id(param): param for param in params if param.requires_grad}
        kept = {id(param) for param in params}
        _remove(self._handles, [key for key in self._handles if key not in kept])
        for key, param in wanted.items():
            if key not in self._handles:
                handle = param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._hook()
                )
                self._handles[key] = handle

    def close(self) -> None:
        """Remove them all."""
        _remove(self._handles)

    def _hook(self) -> Callable[[Tensor], None]:
        owner = self._owner

        def come(param: Tensor) -> None:
            there = owner()
            if there is not None:
                there.come(param)

        return come


def _remove(handles: dict[int, RemovableHandle], keys: Sequence[int] | None = None) -> None:
    for key in list(handles) if keys is None else keys:
        handles.pop(key).remove()
