"""``carousel configs``: the settings that come with the package, listed, shown and copied."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from carousel.cli.failures import CarouselGroup
from carousel.cli.flags import JsonFlag
from carousel.cli.help import PlainCommand
from carousel.cli.store import print_json
from carousel.errors import BadInputError
from carousel.runs.shipped import list_shipped, shipped_path

__all__ = ["configs"]

configs = typer.Typer(
    cls=CarouselGroup,
    help="Settings of the papers, and small ones to try: list, show or copy them.",
    epilog="`carousel train --config NAME` takes them by name.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@configs.callback()
def root(context: typer.Context) -> None:
    """Without a command: the help."""
    if context.invoked_subcommand is None:
        print(context.get_help())


Name = Annotated[str, typer.Argument(help="One of `carousel configs ls`.")]


@configs.command("ls", cls=PlainCommand)
def ls(as_json: JsonFlag = False) -> None:
    """List the settings that come with Carousel."""
    found = list_shipped()
    if as_json:
        print_json({"configs": [asdict(config) for config in found]})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "method", "benchmark", "memory", "note"):
        table.add_column(
            heading,
            justify="right" if heading == "memory" else "left",
            no_wrap=heading != "note",
        )
    for config in found:
        size = config.memory_size
        shown = f"{size:,}" if isinstance(size, int) else str(size)
        table.add_row(config.name, config.strategy, config.benchmark, shown, config.note)
    Console(highlight=False).print(table)


@configs.command("cat", cls=PlainCommand)
def cat(name: Name) -> None:
    """Print the file of a name."""
    print(shipped_path(name).read_text("utf-8"), end="")


@configs.command("cp", cls=PlainCommand)
def cp(
    name: Name,
    to: Annotated[Path, typer.Argument(help="File or folder to copy to.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file there.")] = False,
) -> None:
    """Copy the file of a name, to change it."""
    source = shipped_path(name)
    target = to / source.name if to.is_dir() else to
    if target.is_dir() or (target.exists() and not force):
        raise BadInputError(f"{target} exists", fix="give another path, or --force")
    if not target.parent.is_dir():
        raise BadInputError(f"there is no folder {target.parent}", fix="make it first")
    target.write_text(source.read_text("utf-8"), "utf-8")
    print(f"{target}: start with `carousel train --config {target}`")
