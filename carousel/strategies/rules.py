"""How a memory is filled, replayed and judged: what the user chose, and what a method needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from carousel.errors import BadInputError
from carousel.memory.admission import Admission
from carousel.memory.gate import Gate
from carousel.strategies.draw import ReplayRule
from carousel.strategies.update import UpdateRule

__all__ = ["Rules", "require_stream", "settle"]

_CHOICES = ("update", "replay", "admission", "gate", "batch_size_mem")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a memory; None leaves a rule open.

    Args:
        update: when samples are saved and admitted; see `CarMPlugin`, or a callable that makes
            an `Update`.
        replay: which rows a step trains on; see `CarMPlugin`.
        admission: who gets a slot.
        gate: which replayed rows leave.
        batch_size_mem: rows of each draw.
        draws: independent draws a step.
        only: names of rules that the method cannot do without: another choice is refused.
    """

    update: UpdateRule | None = None
    replay: ReplayRule | None = None
    admission: str | Admission | None = None
    gate: str | Gate | None = None
    batch_size_mem: int | None = None
    draws: int = 1
    only: tuple[str, ...] = ()


PLAIN = Rules(update="experience", replay="concat", admission="class-balanced", gate="balanced")
"""What a memory does that no method has a say in: experience replay."""


def settle(chosen: Rules, wanted: Rules = PLAIN, *, method: str = "") -> Rules:
    """The user's rules, and the method's where the user left them open.

    Args:
        chosen: by the user.
        wanted: by the method; what it leaves open as well is as in `PLAIN`.
        method: named in errors.

    Raises:
        BadInputError: a rule is none, two rules exclude each other, or the user's is not one
            that the method can work with.

    Example:
        >>> settle(Rules(gate="random"), Rules(update="batch", gate="score")).gate
        'random'
    """
    values: dict[str, Any] = {}
    for name in _CHOICES:
        mine, theirs = getattr(chosen, name), getattr(wanted, name)
        if name in wanted.only and mine is not None and mine != theirs:
            raise BadInputError(
                f"{name} is {mine!r}, with which {method or 'the method'} cannot work",
                fix=f"leave {name} out"
                + (f", or give {theirs!r}" if isinstance(theirs, str) else ""),
            )
        first = (value for value in (mine, theirs, getattr(PLAIN, name)) if value is not None)
        values[name] = next(first, None)
    rules = replace(wanted, **values)
    _check(rules)
    return rules


def require_stream(rules: Rules, method: str) -> None:
    """Refuse to train on the memory alone, which holds nothing of the experience at hand.

    Raises:
        BadInputError: the rules say so.
    """
    if rules.replay == "memory":
        raise BadInputError(
            f'replay is "memory", and {method} learns new classes from the stream',
            fix='use replay="mixed" or "concat"',
        )


def _check(rules: Rules) -> None:
    rows = rules.batch_size_mem
    if rows is not None and rows < 1:
        raise BadInputError(f"batch_size_mem is {rows}", fix="give at least 1, or None")
    if not callable(rules.update) and rules.update not in ("experience", "batch"):
        raise BadInputError(f"update is {rules.update!r}", fix='use "experience" or "batch"')
    if rules.replay not in ("concat", "mixed", "memory"):
        raise BadInputError(f"replay is {rules.replay!r}", fix='use "concat" or "mixed"')
    if rules.replay != "concat" and rules.update == "batch":
        raise BadInputError(
            f'replay="{rules.replay}" passes over a memory that stays the same for an epoch',
            fix='use replay="concat" with update="batch"',
        )
