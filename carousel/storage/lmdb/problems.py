"""Several errors raised as one."""

from __future__ import annotations

from collections.abc import Sequence

from carousel.errors import TierFullError

__all__ = ["raise_all"]


def raise_all(problems: Sequence[BaseException]) -> None:
    """Raise the gravest of some errors, the others as notes; nothing when there are none.

    A full tier is the mildest: callers take it as a fact and go on, which must not hide anything
    else. Among others the first is raised.
    """
    if not problems:
        return
    gravest = next((error for error in problems if not isinstance(error, TierFullError)), None)
    raised = problems[0] if gravest is None else gravest
    for other in problems:
        if other is not raised:
            raised.add_note(f"and then: {type(other).__name__}: {other}")
    raise raised
