"""``carousel report``: rebuild the report of a run from its measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from carousel.cli.flags import JsonFlag
from carousel.cli.store import print_json
from carousel.report.record import PLOT_NAMES

__all__ = ["RunPath", "report"]

RunPath = Annotated[
    Path, typer.Argument(help="Folder of a run, as `train` made it.", show_default=False)
]


def report(run: RunPath, as_json: JsonFlag = False) -> None:
    """Rebuild report.html and the pictures of a run, also of one that is not finished."""
    from carousel.runs.folder import RunFolder
    from carousel.runs.outcome import write_report

    folder = RunFolder(run)
    write_report(folder)
    if as_json:
        pictures = {name: str(run / f"{name}.png") for name in PLOT_NAMES}
        print_json({"report": str(folder.report_file), "pictures": pictures})
        return
    from carousel.report.tables import summary_view

    console = Console()
    summary = folder.read_summary()
    if summary:
        console.print(summary_view(summary))
        console.print()
    console.print(f"report: {folder.report_file}", highlight=False, soft_wrap=True)
