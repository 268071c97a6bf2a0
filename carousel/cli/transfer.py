"""``carousel export`` and ``carousel import``: samples as readable files, and back."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from carousel.cli.flags import JsonFlag
from carousel.cli.store import StorePath, open_to_read, print_json, progress_of
from carousel.errors import BadInputError
from carousel.report.words import count_text
from carousel.storage import LMDBTier

if TYPE_CHECKING:
    from carousel.storage.transfer import AddedField

__all__ = ["export_samples", "import_samples"]

_FIELD = re.compile(r"(?P<name>[^:]+):(?P<dtype>\w+):(?P<shape>[\dx]*)(=(?P<fill>[-+.\deE]+))?")
_MOST_LINES = 10


def export_samples(
    path: StorePath,
    folder: Annotated[
        Path, typer.Argument(help="Where to write: an empty or new folder.", show_default=False)
    ],
    as_json: JsonFlag = False,
) -> None:
    """Write every sample of a storage to a file of its own, in a folder a class.

    Images become PNG files, other samples keep their exact bytes; `carousel import` reads both.
    """
    from carousel.storage.transfer import export_store

    with (
        open_to_read(path) as tier,
        progress_of("exporting", show=not as_json) as progress,
    ):
        count = export_store(tier, folder, progress)
    if as_json:
        print_json({"exported": count, "folder": str(folder)})
    else:
        Console(highlight=False, soft_wrap=True).print(
            f"{count_text(count)} samples written to {folder}"
        )


def import_samples(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Where to read: an export, or images in a folder a class.", show_default=False
        ),
    ],
    path: Annotated[
        Path, typer.Argument(help="Folder of the storage; made if need be.", show_default=False)
    ],
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema",
            metavar="NAME:DTYPE:SHAPE=FILL",
            help="A field to add to samples that lack it, such as logits:float32:10=0; repeatable.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Read samples from files into a storage.

    An export gives back its samples bit for bit, under their ids. Any other folder gives its
    JPEG and PNG files as they are, with the sub-folders as classes.
    """
    from carousel.storage.owner import read_marker
    from carousel.storage.transfer import check_source, import_store

    fields = [_parse_field(text) for text in schema or []]
    check_source(folder)
    marker = read_marker(path)
    durability = marker.durability if marker else "bounded"
    with (
        LMDBTier(path, durability=durability) as tier,
        progress_of("importing", show=not as_json) as progress,
    ):
        report = import_store(folder, tier, add=fields, progress=progress)
        tier.flush()
    if as_json:
        print_json(asdict(report))
        return
    console = Console(highlight=False, soft_wrap=True)
    for file, why in list(report.skipped.items())[:_MOST_LINES]:
        console.print(f"skipped {file}: {why}", markup=False)
    skipped = f", {count_text(len(report.skipped))} skipped" if report.skipped else ""
    console.print(f"{count_text(report.imported)} samples imported into {path}{skipped}")


def _parse_field(text: str) -> AddedField:
    from carousel.storage.transfer import add_field

    match = _FIELD.fullmatch(text)
    if match is None:
        raise BadInputError(
            f"--schema {text!r} is no field",
            fix="write NAME:DTYPE:SHAPE=FILL, as logits:float32:10=0",
        )
    shape = [int(size) for size in match["shape"].split("x") if size]
    try:
        return add_field(match["name"], match["dtype"], shape, float(match["fill"] or 0))
    except TypeError:
        raise BadInputError(
            f"--schema {text!r} has an unknown dtype", fix="give a numpy dtype such as float32"
        ) from None
