"""Closes what was left open when the interpreter ends, so that queued samples are not lost."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import Protocol

__all__ = ["close_at_exit"]


class _Closable(Protocol):
    def close(self) -> None: ...


_open: weakref.WeakSet[_Closable] = weakref.WeakSet()
_owner = os.getpid()


def close_at_exit(thing: _Closable) -> None:
    """Close `thing` at the end of this process if it still exists; closing it before is fine.

    What `thing` uses must be open already: what is registered last is closed first.
    """
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(thing)


def _close_all() -> None:
    if os.getpid() != _owner:  # a fork has copies of what its parent closes
        return
    for thing in list(_open):
        with contextlib.suppress(Exception):
            thing.close()
