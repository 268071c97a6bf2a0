"""``carousel report``: rebuild the report of a run from its measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from carousel.cli.flags import JsonFlag
from carousel.cli.store import print_json
from carousel.report.record import PLOT_NAMES

if TYPE_CHECKING:
    from carousel.runs.folder import RunFolder
    from carousel.runs.study.folder import StudyFolder

__all__ = ["RunPath", "report"]

RunPath = Annotated[
    Path, typer.Argument(help="Folder of a run, as `train` made it.", show_default=False)
]

ReportPath = Annotated[
    Path,
    typer.Argument(
        help="Folder of a run or a study, as `train` or `compare` made it.", show_default=False
    ),
]


def report(run: ReportPath, as_json: JsonFlag = False) -> None:
    """Rebuild report.html and the pictures of a run or a study, also of an unfinished one."""
    from carousel.runs.folder import RunFolder
    from carousel.runs.study.folder import StudyFolder

    study = StudyFolder(run)
    if study.started:
        _report_study(study, as_json)
    else:
        _report_run(RunFolder(run), as_json)


def _report_run(folder: RunFolder, as_json: bool) -> None:
    from carousel.runs.outcome import write_report

    write_report(folder)
    if as_json:
        pictures = {name: str(folder.path / f"{name}.png") for name in PLOT_NAMES}
        print_json({"report": str(folder.report_file), "pictures": pictures})
        return
    from carousel.report.tables import summary_view

    console = Console()
    summary = folder.read_summary()
    if summary:
        console.print(summary_view(summary))
        console.print()
    console.print(f"report: {folder.report_file}", highlight=False, soft_wrap=True)


def _report_study(folder: StudyFolder, as_json: bool) -> None:
    results = folder.report_again()
    if as_json:
        pictures = {path.stem: str(path) for path in sorted(folder.path.glob("*.png"))}
        print_json({"report": str(folder.report_file), "pictures": pictures})
        return
    from carousel.cli.compare import show_study

    show_study(results, folder.report_file, Console())
