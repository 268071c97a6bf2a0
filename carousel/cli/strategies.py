"""``carousel strategies``: the methods there are, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from carousel.cli.flags import JsonFlag
from carousel.cli.store import print_json
from carousel.runs.precheck import METHOD_FLAGS
from carousel.strategies.registry import list_strategies, strategy_info

__all__ = ["strategies"]

_READING = (
    "Options: --set strategy.NAME=VALUE, those with -- as they are; unset: the method decides.\n"
    "What they do: `python -m pydoc carousel.strategies.BiC`, and docs/methods."
)


def strategies(as_json: JsonFlag = False) -> None:
    """List the methods that `carousel train --strategy` takes, with their options and defaults.

    An option is given as --set strategy.NAME=VALUE; those that start with -- are flags.
    """
    infos = [strategy_info(name) for name in list_strategies()]
    if as_json:
        rows = [
            {
                "name": info.name,
                "summary": info.summary,
                "memory": info.has_memory,
                "options": dict(info.options),
            }
            for info in infos
        ]
        print_json({"strategies": rows})
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for info in infos:
        table.add_row(info.name, info.summary)
        if info.options:
            table.add_row("", f"[dim]{_options(info.options)}[/dim]")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\n{_READING}", soft_wrap=True)


def _options(options: Mapping[str, Any]) -> str:
    return "  ".join(f"{_flag(name)}={_word(value)}" for name, value in options.items())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}" if name in METHOD_FLAGS else name


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else str(value)
