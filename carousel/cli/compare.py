"""``carousel compare``: methods with and without swapping, over seeds and settings."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from carousel.cli.failures import FAILURE
from carousel.cli.flags import JsonFlag
from carousel.cli.store import print_json
from carousel.errors import BadInputError
from carousel.report.study.results import StudyResults
from carousel.runs.config import read_config_file
from carousel.runs.shipped import config_path

__all__ = ["compare", "show_study"]

Grid, Runs = "What is compared", "How it is run"


def compare(
    *,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Methods with commas between them, or all.", rich_help_panel=Grid
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Stream to learn. [dim]\\[split-digits][/dim]",
            rich_help_panel=Grid,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="How many (3), or which (0,1,5). [dim]\\[3][/dim]",
            rich_help_panel=Grid,
        ),
    ] = None,
    swap: Annotated[
        str | None,
        typer.Option(
            metavar="both|on|off",
            help="With swapping, without, or both. [dim]\\[both][/dim]",
            rich_help_panel=Grid,
        ),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE,...",
            help="A setting of `train` for all runs; several values are swept. Repeatable.",
            rich_help_panel=Grid,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|NAME",
            help="YAML file of settings, with `strategies:` and others for one method below it.",
            rich_help_panel=Grid,
        ),
    ] = None,
    defaults: Annotated[
        bool,
        typer.Option(
            "--defaults",
            help="Start from the defaults of `train`, not from `carousel configs`.",
            rich_help_panel=Grid,
        ),
    ] = False,
    no_bounds: Annotated[
        bool,
        typer.Option("--no-bounds", help="Leave naive and joint out.", rich_help_panel=Grid),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder of the study. [dim]\\[runs/TIME-compare-BENCHMARK][/dim]",
            rich_help_panel=Runs,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Runs at a time, one thread each. [dim]\\[the processors][/dim]",
            rich_help_panel=Runs,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster: auto, HOST:PORT, or local for one of this machine.",
            rich_help_panel=Runs,
        ),
    ] = None,
    keep_storage: Annotated[
        bool,
        typer.Option(
            "--keep-storage",
            help="Keep storage and checkpoints of runs that are done; else they are deleted.",
            rich_help_panel=Runs,
        ),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Train all runs anew.", rich_help_panel=Runs),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare methods with and without swapping: means, paired gains and intervals over seeds.

    Without --config each method has the settings that come with Carousel for the benchmark (see
    `carousel configs ls`), else the defaults of `carousel train`; --set wins over all.

    Runs that are done are skipped and those that were cut short go on, so the same command
    continues a study. Storage of a finished run is deleted unless --keep-storage is given.
    """
    from carousel.runs.study.compare import plan_compare
    from carousel.runs.study.folder import default_study_path
    from carousel.runs.study.settings import plan_study

    if config and defaults:
        raise BadInputError(
            "--config and --defaults are both given", fix="give one: a file starts from defaults"
        )
    study = plan_study(
        file=read_config_file(config_path(config)) if config else None,
        strategies=strategies,
        benchmark=benchmark,
        seeds=seeds,
        swap=swap,
        assignments=assign or [],
        bounds=False if no_bounds else None,
        defaults=defaults,
    )
    path = out or default_study_path(study.benchmark)
    plan = plan_compare(study, path, jobs=jobs, ray=ray, keep_storage=keep_storage, fresh=fresh)
    console = Console(stderr=as_json)
    results = _run(plan, console, quiet=quiet or as_json)
    if as_json:
        from carousel.report.study.write import results_json

        print_json(results_json(results))
    else:
        show_study(results, plan.folder.report_file, console)
    if results.failed:
        _blame(results)
        raise typer.Exit(FAILURE)


def show_study(results: StudyResults, report: Path, console: Console) -> None:
    """Print the table of a study and where the rest is."""
    from carousel.report.study.tables import study_table

    console.print()
    console.print(study_table(results))
    console.print(f"\nreport: {report}", highlight=False, soft_wrap=True)


def _run(plan: Any, console: Console, *, quiet: bool) -> StudyResults:
    # Avalanche warns that a strategy has no loggers; ours are not its own.
    warnings.filterwarnings("ignore", message="No loggers specified")
    from carousel.runs.interrupt import RunInterrupted
    from carousel.runs.study.compare import compare as run
    from carousel.runs.study.view import make_view

    view = make_view(console, quiet=quiet)
    view.note(f"study folder {plan.folder.path}")
    if plan.study.shipped:
        view.note(f"settings: {', '.join(plan.study.shipped)} (`carousel configs cat NAME`)")
    sys.stdout.flush()
    try:
        return run(plan, view)
    except RunInterrupted as stop:
        print(
            "carousel: interrupted: the same command with "
            f"--out {plan.folder.path} goes on where it was",
            file=sys.stderr,
        )
        raise typer.Exit(128 + stop.signum) from None
    finally:
        view.close()


def _blame(results: StudyResults) -> None:
    for run in results.failed:
        print(f"carousel: {run.name}: {run.error} (see {run.log})", file=sys.stderr)
    print(f"carousel: {len(results.failed)} of {len(results.runs)} runs failed", file=sys.stderr)
