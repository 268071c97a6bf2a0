"""``carousel verify``: is every sample, or every chunk of optimizer states, intact."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from carousel.cli.failures import FAILURE
from carousel.cli.flags import JsonFlag
from carousel.cli.store import StorePath, print_json, progress_of
from carousel.report.words import count_text

if TYPE_CHECKING:
    from carousel.storage import VerifyReport

__all__ = ["verify"]

_MOST_LINES = 20


def verify(path: StorePath, as_json: JsonFlag = False) -> None:
    """Check every byte of every sample; exit with 1 if anything is damaged.

    Damaged samples are set aside and never served, unless another process has the storage open.
    In a folder of optimizer states every chunk that the last commit names is checked.
    """
    from carousel.offload.inspection import holds_states, verify_states
    from carousel.storage.maintenance import verify_store

    states = holds_states(path)
    with progress_of("verifying", show=not as_json) as progress:
        report = (verify_states if states else verify_store)(path, progress)
    if as_json:
        print_json({**asdict(report), "ok": report.ok})
    else:
        console = Console(highlight=False)
        what = "chunk" if states else "record"
        damaged = [f"{what} {number}: {why}" for number, why in report.corrupt.items()]
        for line in [*report.problems, *damaged][:_MOST_LINES]:
            console.print(line, markup=False, soft_wrap=True)
        for line in _verdict_on_states(report) if states else _verdict(path, report):
            console.print(line, markup=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(FAILURE)


def _verdict(path: Path, report: VerifyReport) -> list[str]:
    """What was found, and what to do about it."""
    checked = f"{count_text(report.checked)} samples checked"
    damaged = f"{count_text(len(report.corrupt))} damaged and set aside"
    if report.ok:
        return [f"{checked}: all intact"]
    if not report.problems:
        return [f"{checked}: {damaged}", "the others can be used; damaged ones are never served"]
    found = count_text(len(report.problems))
    readable = damaged if report.corrupt else "all that can be read are intact"
    return [
        f"{checked}: {readable}; the file around them is damaged ({found} problems)",
        f"save what can be read with `carousel export {path} FOLDER`; then put back a copy of "
        "the storage, or start anew from the export with `carousel import`",
    ]


def _verdict_on_states(report: VerifyReport) -> list[str]:
    """The same of an optimizer's states, of which none can be done without."""
    checked = f"{count_text(report.checked)} chunks of optimizer states checked"
    if report.ok:
        return [f"{checked}: all intact"]
    found = count_text(len(report.corrupt) + len(report.problems))
    return [
        f"{checked}: {found} problems",
        "it cannot be resumed from; put back a copy of the folder, or start anew with another path",
    ]
