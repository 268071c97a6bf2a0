"""Where an experience stands in its stream: the name under which its ids are remembered."""

from __future__ import annotations

from typing import Any

from avalanche.benchmarks import CLExperience

__all__ = ["place_of"]


def place_of(strategy: Any, run: str) -> tuple[str, int]:
    """The run and number under which the ids of the strategy's experience are remembered.

    A stream made of the parts of one experience counts from 0, as the next such stream does, so
    the number of the whole experience is part of the name.
    """
    experience = strategy.experience
    if isinstance(experience, CLExperience):
        experience = experience.logging()  # nothing is masked
    number = _number_of(experience)
    if number is None:
        return run, int(strategy.clock.train_exp_counter)
    whole = _number_of(getattr(experience, "origin_experience", None))
    return (run if whole is None else f"{run}/{whole}"), number


def _number_of(experience: Any) -> int | None:
    try:
        return int(experience.current_experience)
    except (AttributeError, TypeError, AssertionError):
        return None
