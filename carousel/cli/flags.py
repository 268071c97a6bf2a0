"""Flags of ``carousel train``, made from the settings so that the two cannot differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from carousel.runs.config import TrainConfig

__all__ = ["JsonFlag", "with_settings"]

_LONGEST_CHOICES = 16

_METAVARS = {str: "NAME", int: "N", float: "X", Path: "PATH"}

F = TypeVar("F", bound=Callable[..., None])

JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document and nothing else, no progress either."),
]


def with_settings(panels: Mapping[str, Sequence[str]]) -> Callable[[F], F]:
    """Give a command one option a setting of `TrainConfig`, in place of its ``**settings``.

    An option that is not given arrives as None, so that the command can tell.

    Args:
        panels: names of settings by the heading under which the help shows them.

    Raises:
        ValueError: a setting is under no heading.
    """
    names = [name for group in panels.values() for name in group]
    missing = set(TrainConfig.model_fields) - {"options"} - set(names)
    if missing:
        raise ValueError(f"settings under no heading: {sorted(missing)}")

    def decorate(command: F) -> F:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=_option(name, TrainConfig.model_fields[name], panel),
            )
            for panel, group in panels.items()
            for name in group
        ]
        parameters = [*added, *own]
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
        )
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _option(name: str, field: FieldInfo, panel: str) -> Any:
    option = typer.Option(
        "--" + name.replace("_", "-"),
        help=f"{field.description}{_shown_default(field)}",
        metavar=_metavar(field.annotation),
        rich_help_panel=panel,
    )
    return Annotated[_flag_type(field.annotation) | None, option]


def _metavar(annotation: Any) -> str | None:
    """What stands for the value in the help: the choices, where they are short."""
    if choices := _choices(annotation):
        listed = "|".join(choices)
        return listed if len(listed) <= _LONGEST_CHOICES else "NAME"
    kinds = {annotation, *get_args(annotation)}
    if bool in kinds:
        return None
    if {int, str} <= kinds:
        return "SIZE"
    return next(word for kind, word in _METAVARS.items() if kind in kinds)


def _shown_default(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    shown = extra["shown"] if isinstance(extra, dict) else field.default
    if shown is False or shown == ():
        return ""
    return f" [dim]\\[{shown}][/dim]"


def _flag_type(annotation: Any) -> Any:
    """Values are read as text: the settings check them, and name a wrong one in their error."""
    if annotation is bool:
        return bool
    return list[str] if get_origin(annotation) is tuple else str


def _choices(annotation: Any) -> tuple[str, ...]:
    """The values of a Literal, wherever it stands in the annotation."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return next((found for part in get_args(annotation) if (found := _choices(part))), ())
