"""What a user sees when something goes wrong: one line, and an exit code that means something.

0 done, 1 failure, 2 bad input (the line names the value and the fix), 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from carousel.cli.help import plain_metavars
from carousel.errors import BadInputError, CarouselError, ForeignStorageError, StorageLockedError

__all__ = ["BAD_INPUT", "FAILURE", "INTERRUPTED", "CarouselGroup"]

FAILURE, BAD_INPUT, INTERRUPTED = 1, 2, 130

_USERS_CHOICE = (BadInputError, ForeignStorageError, StorageLockedError)
"""Errors that another value on the command line cures."""


class CarouselGroup(TyperGroup):
    """The command group; turns every exception into one line and an exit code.

    With ``CAROUSEL_DEBUG=1`` in the environment the traceback is printed too.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with plain metavars."""
        return plain_metavars(super().get_params(ctx))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; never returns in standalone mode."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            code = _explain(error)
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> int:
    if os.environ.get("CAROUSEL_DEBUG") == "1":
        traceback.print_exception(error)
    code, line = _verdict(error)
    print(f"carousel: {_one_line(line)}", file=sys.stderr)
    return code


def _verdict(error: Exception) -> tuple[int, str]:
    if isinstance(error, typer.Abort):
        return FAILURE, "stopped: nothing was changed"
    usage = getattr(error, "format_message", None)
    if usage is not None:
        # Typer's own errors: an unknown flag, a value that is no number.
        return int(getattr(error, "exit_code", BAD_INPUT)), f"{usage()} (see --help)"
    if isinstance(error, _USERS_CHOICE):
        return BAD_INPUT, str(error)
    name = "" if isinstance(error, CarouselError) else f"{type(error).__name__}: "
    notes = getattr(error, "__notes__", None) or ["CAROUSEL_DEBUG=1 shows where it happened"]
    return FAILURE, f"{name}{error} ({notes[-1]})"


def _one_line(text: str) -> str:
    return " ".join(text.split())
