"""Registration of the sub-commands, and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

import carousel
from carousel.cli.failures import CarouselGroup
from carousel.cli.train import train

__all__ = ["app"]

app = typer.Typer(
    cls=CarouselGroup,
    help="Continual learning with a memory in two tiers: a little RAM and a lot of storage.",
    epilog="Start with `carousel train`; it needs no download and takes under a minute.",
    invoke_without_command=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"carousel {carousel.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command("train")(train)
