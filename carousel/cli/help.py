"""Help that reads as prose: no types of Python, no line breaks inside a paragraph."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand

__all__ = ["PlainCommand", "plain_metavars"]


class PlainCommand(TyperCommand):
    """A command with plain metavars and flowing paragraphs in its help."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.help:
            paragraphs = inspect.cleandoc(self.help).split("\n\n")
            self.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with metavars where none were given."""
        return plain_metavars(super().get_params(ctx))


def plain_metavars(params: list[Any]) -> list[Any]:
    """None for flags, the name in capitals for arguments; options of ours have their own."""
    for param in params:
        if param.metavar is not None:
            continue
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.metavar = param.name.upper()
    return params
