"""``carousel train``: learn a stream and report what happened."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Annotated, Any

import typer
from rich.console import Console

import carousel
from carousel.cli.flags import JsonFlag, with_settings
from carousel.report.words import percent_text
from carousel.runs.config import parse_assignments, read_config_file
from carousel.runs.launch import Launch, plan_launch
from carousel.runs.precheck import check_settings
from carousel.runs.progress import RunProgress, make_progress
from carousel.runs.shipped import config_path

__all__ = ["train"]

_PANELS = {
    "Stream": (
        "strategy",
        "benchmark",
        "scenario",
        "experiences",
        "class_order",
        "class_order_seed",
        "normalize",
        "resize",
        "limit",
        "data_root",
    ),
    "Memory and storage": (
        "memory_size",
        "storage",
        "storage_budget",
        "swap_ratio",
        "gate",
        "no_swap",
        "sync",
        "admission",
        "update",
        "replay",
        "batch_size_mem",
        "durability",
    ),
    "Learning": (
        "model",
        "epochs",
        "batch_size",
        "optimizer",
        "lr",
        "lr_milestones",
        "lr_gamma",
        "momentum",
        "nesterov",
        "weight_decay",
        "offload",
        "augment",
        "device",
        "seed",
    ),
    "Run folder": ("out", "checkpoint_every", "eval_every", "logger"),
}


@with_settings(_PANELS)
def train(
    *,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="YAML file, or a name that `carousel configs ls` lists."),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting, or strategy.NAME=VALUE for an option of the strategy; repeatable.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was cut short.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard an earlier run and its stored samples.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
    as_json: JsonFlag = False,
    **settings: Any,
) -> None:
    """Learn a stream of experiences with a carousel memory.

    Settings come from the command line, else from --config, else from the defaults in brackets.

    Everything about a run ends in one folder: settings, metrics, checkpoints, model, report.
    """
    given = {name: value for name, value in settings.items() if value not in (None, [])}
    launch = plan_launch(
        file=read_config_file(config_path(config)) if config else None,
        command_line=given | parse_assignments(assign or []),
        resume=resume,
        fresh=fresh,
    )
    console = Console(stderr=as_json)
    progress = make_progress(console, quiet=quiet or as_json)
    if launch.action != "show":
        check_settings(launch.config, launch.storage)
    _announce(launch, progress)
    summary = launch.folder.read_summary() if launch.action == "show" else _run(launch, progress)
    if as_json:
        print(json.dumps(summary))
    else:
        _show(summary, launch, console, quiet=quiet)


def _announce(launch: Launch, progress: RunProgress) -> None:
    """Say what happens before torch and Avalanche, which take seconds, are imported."""
    config, finished = launch.config, launch.action == "show"
    progress.note(
        f"carousel {carousel.__version__} · {config.strategy} on {config.benchmark} · "
        + (f"run folder {launch.folder.path}" if finished else "loading torch and Avalanche ...")
    )
    for note in launch.notes:
        progress.note(note)
    if finished:
        progress.note("this run is finished; here is its summary")
    sys.stdout.flush()


def _run(launch: Launch, progress: RunProgress) -> dict[str, Any]:
    # Avalanche warns that a strategy has no loggers; ours are not its own.
    warnings.filterwarnings("ignore", message="No loggers specified")
    from carousel.runs.interrupt import RunInterrupted
    from carousel.runs.train import train as run

    try:
        return run(launch, progress)
    except RunInterrupted as stop:
        progress.close()
        saved = any(launch.folder.checkpoints.glob("*.pt"))
        print(
            f"carousel: interrupted, {'checkpoint written' if saved else 'nothing learned yet'}: "
            f"go on with `carousel train --resume --out {launch.folder.path}`",
            file=sys.stderr,
        )
        raise typer.Exit(128 + stop.signum) from None
    finally:
        progress.close()


def _show(summary: dict[str, Any], launch: Launch, console: Console, *, quiet: bool) -> None:
    report = launch.folder.report_file
    if quiet:
        final, lost = summary["final_accuracy"], summary["forgetting"]
        console.print(
            f"final accuracy {percent_text(final)}, forgetting {percent_text(lost)}, "
            f"report {report}",
            highlight=False,
            soft_wrap=True,
        )
        return
    from carousel.report.tables import summary_view

    console.print()
    console.print(summary_view(summary))
    console.print(f"\nreport: {report}", highlight=False, soft_wrap=True)
