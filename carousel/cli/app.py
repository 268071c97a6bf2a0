"""Registration of the sub-commands, and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

import carousel
from carousel.cli.benchmarks import benchmarks
from carousel.cli.compact import compact
from carousel.cli.compare import compare
from carousel.cli.configs import configs
from carousel.cli.doctor import doctor
from carousel.cli.evaluate import evaluate
from carousel.cli.failures import CarouselGroup
from carousel.cli.forget import forget
from carousel.cli.help import PlainCommand
from carousel.cli.inspect import inspect
from carousel.cli.plan import plan
from carousel.cli.report import report
from carousel.cli.strategies import strategies
from carousel.cli.train import train
from carousel.cli.transfer import export_samples, import_samples
from carousel.cli.verify import verify

__all__ = ["app"]

app = typer.Typer(
    name="carousel",
    cls=CarouselGroup,
    help="Continual learning with a memory in two tiers: a little RAM and a lot of storage.",
    epilog="Start with `carousel train`; it needs no download and takes under a minute.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """What happens before any command."""
    if version:
        print(f"carousel {carousel.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


LEARN, STORE, KNOW = "Learn", "Look after a storage", "Find out"

for name, command, heading in (
    ("train", train, LEARN),
    ("eval", evaluate, LEARN),
    ("report", report, LEARN),
    ("compare", compare, LEARN),
    ("inspect", inspect, STORE),
    ("verify", verify, STORE),
    ("compact", compact, STORE),
    ("export", export_samples, STORE),
    ("import", import_samples, STORE),
    ("forget", forget, STORE),
    ("plan", plan, KNOW),
    ("benchmarks", benchmarks, KNOW),
    ("strategies", strategies, KNOW),
    ("doctor", doctor, KNOW),
):
    app.command(name, cls=PlainCommand, rich_help_panel=heading)(command)

app.add_typer(configs, name="configs", rich_help_panel=LEARN)
