"""``carousel doctor``: is this machine ready."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from carousel.cli.failures import FAILURE
from carousel.cli.flags import JsonFlag
from carousel.cli.store import print_json

__all__ = ["doctor"]

_MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "bad": "[red]bad[/red]"}


def doctor(
    path: Annotated[
        Path, typer.Argument(help="Folder where runs and storage will be.", show_default=False)
    ] = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Check versions, disk, memory, locks and devices; exit with 1 if something will not work."""
    import carousel
    from carousel.runs.diagnosis import diagnose

    findings = list(diagnose(path))
    bad = any(finding.state == "bad" for finding in findings)
    if as_json:
        print_json(
            {
                "carousel": carousel.__version__,
                "ready": not bad,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column()
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            advice = f"\n[dim]{finding.advice}[/dim]" if finding.advice else ""
            table.add_row(_MARKS[finding.state], finding.name, finding.value + advice)
        console = Console(highlight=False)
        console.print(f"carousel {carousel.__version__}")
        console.print(table)
        console.print("something will not work" if bad else "ready: try `carousel train`")
    if bad:
        raise typer.Exit(FAILURE)
