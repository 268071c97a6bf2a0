"""States into a file that torch reads, and back, without all of them in RAM at once."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carousel.errors import BadInputError, StorageCorruptedError
from carousel.offload.book import Book, Groups, State
from carousel.offload.loading import MASTERS
from carousel.storage.disk import error_at, extend, sync_file, sync_folder
from carousel.storage.failures import disk_error

__all__ = ["export_states", "open_states"]

_LITTLE = 1 << 16


def export_states(path: Path, book: Book, groups: Groups, state: State) -> None:
    """Write a state_dict into a file, parameter by parameter; it is there whole or not at all.

    Of several ranks the first one writes it, and the others give it what they have.

    The file is laid out first, with room for tensors that nobody has filled, and then filled
    through a shared mapping, whose pages the system may drop at any time.

    Args:
        path: the file; ``torch.load(path, mmap=True, weights_only=True)`` reads it.
        book: of the optimizer.
        groups: its ``param_groups``.
        state: its ``state``.

    Raises:
        TierFullError: the disk is full. `StorageIOError`: the file cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    team, there = book.shelf.team, None
    try:
        with team.together("export"):
            if team.share.rank == 0:
                there = _lay_out(fresh, _outline(book, groups, state))
        for number in [n for n, param in enumerate(book.roster.params) if state.get(param)]:
            full, masters = book.states_of([number], state)
            if there is not None:
                (values,) = full.values()
                for name, value in values.items():
                    there["state"][number][name].copy_(value)
                if number in masters:
                    there[MASTERS][number].copy_(masters[number])
        with team.together("export"):
            if there is not None:
                there = None
                sync_file(fresh)
                fresh.replace(path)
                sync_folder(path.parent)
    except OSError as error:
        raise disk_error(error, f"{path} cannot be written") from error
    except RuntimeError as error:  # of torch's writer, which does not say why
        raise error_at(path.parent, error, f"{path} cannot be written", _LITTLE) from error
    finally:
        fresh.unlink(missing_ok=True)


def open_states(path: Path) -> dict[str, Any]:
    """The state_dict in a file, its tensors read when they are used.

    Raises:
        BadInputError: there is no such file. `StorageCorruptedError`: it holds something else.
    """
    if not path.is_file():
        raise BadInputError(f"{path} does not exist", fix="give a file that export made")
    try:
        loaded = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
    except Exception as error:
        raise StorageCorruptedError(f"{path} cannot be read as a state_dict: {error}") from error
    if not isinstance(loaded, Mapping) or not {"state", "param_groups"} <= loaded.keys():
        raise StorageCorruptedError(f"{path} holds no state of an optimizer")
    return dict(loaded)


def _lay_out(path: Path, outline: dict[str, Any]) -> dict[str, Any]:
    """A file with room for a state_dict's tensors; they are those of a shared mapping."""
    with torch.serialization.skip_data():
        torch.save(outline, path)
    extend(path, 0, path.stat().st_size)  # a page that the disk has no room for would kill
    with _shared_mappings():
        there: dict[str, Any] = torch.load(path, mmap=True, weights_only=True)
    return there


def _outline(book: Book, groups: Groups, state: State) -> dict[str, Any]:
    """The state_dict, with tensors that take no RAM before somebody writes to them."""
    roster, states = book.roster, book.shelf.states
    parts: dict[int, dict[str, Tensor]] = {}
    masters: dict[int, Tensor] = {}
    for number, (param, spec) in enumerate(zip(roster.params, roster.specs, strict=True)):
        if not state.get(param):
            continue
        dtype = states.dtype_of(spec.dtype)
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * spec.amsgrad
        parts[number] = {"step": _unfilled((), torch.float32)}
        parts[number] |= {name: _unfilled(param.shape, dtype) for name in names}
        if dtype != param.dtype:
            masters[number] = _unfilled(param.shape, dtype)
    first = 0
    packed = []
    for group in groups:
        count = len(group["params"])
        plain = {name: value for name, value in group.items() if name != "params"}
        packed.append({**plain, "params": list(range(first, first + count))})
        first += count
    outline: dict[str, Any] = {"state": parts, "param_groups": packed}
    return {**outline, MASTERS: masters} if masters else outline


def _unfilled(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


@contextmanager
def _shared_mappings() -> Iterator[None]:
    """What torch loads with mmap is written through to the file."""
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        yield
