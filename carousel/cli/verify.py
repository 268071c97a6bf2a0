"""``carousel verify``: is every byte intact."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.console import Console

from carousel.cli.failures import FAILURE
from carousel.cli.flags import JsonFlag
from carousel.cli.store import StorePath, print_json, progress_of
from carousel.report.words import count_text

__all__ = ["verify"]

_MOST_LINES = 20


def verify(path: StorePath, as_json: JsonFlag = False) -> None:
    """Read every sample and check every byte; exit with 1 if anything is damaged.

    Damaged samples are set aside and never served, unless another process is writing the
    storage: then nothing is changed.
    """
    from carousel.storage.maintenance import verify_store

    with progress_of("verifying", show=not as_json) as progress:
        report = verify_store(path, progress)
    if as_json:
        print_json({**asdict(report), "ok": report.ok})
    else:
        console = Console(highlight=False)
        damaged = [f"record {number}: {why}" for number, why in report.corrupt.items()]
        for line in [*report.problems, *damaged][:_MOST_LINES]:
            console.print(line, markup=False, soft_wrap=True)
        state = "all intact" if report.ok else f"{len(report.corrupt)} damaged and set aside"
        console.print(f"{count_text(report.checked)} samples checked: {state}")
    if not report.ok:
        raise typer.Exit(FAILURE)
