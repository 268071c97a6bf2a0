"""A user's own admission rule, whose answers are checked before they touch the memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from carousel.errors import BadInputError
from carousel.memory.admission.base import Admission, Assignment, Ints, SlotState

__all__ = ["Checked"]


class Checked:
    """Passes everything on to a rule, and refuses plans that would spoil the slots.

    Args:
        rule: the rule.
    """

    def __init__(self, rule: Admission) -> None:
        self._rule = rule

    def plan(self, slots: SlotState, ids: Ints, labels: Ints, tasks: Ints) -> Assignment:
        """See `Admission.plan`.

        Raises:
            BadInputError: the plan names slots or rows that are not there, or one twice.
        """
        plan = self._rule.plan(slots, ids, labels, tasks)
        problem = _problem(plan, slots, ids)
        if problem:
            raise BadInputError(
                f"the admission rule {type(self._rule).__name__} {problem}",
                fix="answer with an Assignment of distinct slots and rows",
            )
        return plan

    def state_dict(self) -> dict[str, Any]:
        """See `Admission.state_dict`."""
        return self._rule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Admission.load_state_dict`."""
        self._rule.load_state_dict(state)


def _problem(plan: Any, slots: SlotState, ids: Ints) -> str:
    if not isinstance(plan, Assignment):
        return f"answered with a {type(plan).__name__}"
    limits = {"slots": slots.capacity, "rows": len(ids), "freed": len(slots.ids)}
    for name, limit in limits.items():
        problem = _problem_of(np.asarray(getattr(plan, name)), name, limit)
        if problem:
            return problem
    if len(plan.slots) != len(plan.rows):
        return f"gave {len(plan.slots)} slots for {len(plan.rows)} rows"
    if np.isin(plan.freed, plan.slots).any():
        return "both frees and fills a slot"
    coming = ids[plan.rows]
    twice = len(np.unique(coming)) < len(coming) or np.isin(coming, slots.ids).any()
    return "admits a sample twice" if twice else ""


def _problem_of(values: Ints, name: str, limit: int) -> str:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        return f"gave {name} that are no list of whole numbers"
    if len(values) and (values.min() < 0 or values.max() >= limit):
        return f"gave {name} beyond the {limit} that there are"
    return f"gave one of its {name} twice" if len(np.unique(values)) < len(values) else ""
