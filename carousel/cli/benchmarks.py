"""``carousel benchmarks``: the streams there are, and how to get the others."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from carousel.cli.flags import JsonFlag
from carousel.cli.store import print_json
from carousel.data import list_benchmarks
from carousel.report.words import count_text

__all__ = ["benchmarks"]


def benchmarks(
    data_root: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder of data files. [dim]\\[$CAROUSEL_DATA or ~/.cache/carousel][/dim]",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the streams that `carousel train --benchmark` takes."""
    found = list_benchmarks(data_root)
    if as_json:
        print_json({"benchmarks": [asdict(info) for info in found]})
        return
    table = Table(box=None, pad_edge=False)
    for heading, justify in (
        ("benchmark", "left"),
        ("classes", "right"),
        ("sample", "left"),
        ("samples", "right"),
        ("experiences", "right"),
        ("here", "left"),
    ):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for info in found:
        table.add_row(
            info.name,
            str(info.n_classes),
            "x".join(map(str, info.shape)),
            count_text(info.samples),
            str(info.experiences),
            "[green]yes[/green]" if info.available else "[yellow]no[/yellow]",
        )
    console = Console()
    console.print(table)
    console.print()
    console.print("folder:PATH  your own images, a folder a class", highlight=False)
    console.print("npz:FILE     your own arrays x and y", highlight=False)
    missing = [info for info in found if not info.available]
    if missing:
        console.print("\nTo get the others:")
    for info in missing:
        line = f"  {info.name}: {info.how_to_get}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
