"""``carousel eval``: test a saved model on a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from carousel.cli.flags import JsonFlag
from carousel.cli.report import RunPath
from carousel.cli.store import print_json
from carousel.report.words import count_text, percent_text

__all__ = ["evaluate"]


def evaluate(
    run: RunPath,
    *,
    benchmark: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another stream to test on. [dim]\\[the run's][/dim]"),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Folder of data files.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.")
    ] = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Test the model of a finished run on every experience of a stream."""
    from carousel.runs.evaluate import evaluate_run

    found = evaluate_run(run, benchmark=benchmark, data_root=data_root, device=device)
    if as_json:
        print_json(found)
    else:
        _show(found, Console(highlight=False))


def _show(found: dict[str, Any], console: Console) -> None:
    table = Table(
        title=f"{found['model']} on {found['benchmark']}",
        title_justify="left",
        title_style="bold",
        box=None,
    )
    for heading in ("experience", "test samples", "accuracy", "told the experience"):
        table.add_column(heading, justify="right")
    rows = zip(found["test_samples"], found["accuracies"], found["task_il_accuracies"], strict=True)
    for number, (count, accuracy, told) in enumerate(rows, start=1):
        table.add_row(str(number), count_text(count), percent_text(accuracy), percent_text(told))
    console.print(table)
    console.print(f"over all classes: {percent_text(found['final_accuracy'])}")
