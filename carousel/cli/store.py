"""What the commands that work on a storage share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from carousel.storage import StorageTier
from carousel.storage import tier as tiers

__all__ = ["StorePath", "open_to_read", "print_json", "progress_of"]

StorePath = Annotated[Path, typer.Argument(help="Folder of the storage.", show_default=False)]


@contextmanager
def open_to_read(path: Path) -> Iterator[StorageTier]:
    """The storage of a folder, beside an owner if there is one.

    Raises:
        BadInputError: no storage is there.
    """
    from carousel.storage.maintenance import kind_of, open_store

    with open_store(path, readonly=kind_of(path) == "lmdb") as tier:
        yield tier


@contextmanager
def progress_of(what: str, *, show: bool = True) -> Iterator[tiers.Progress]:
    """A bar on the terminal while something long happens; silent where there is no terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (show and console.is_terminal),
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    print(json.dumps(document, indent=2))
