"""The processes that share an optimizer's work, seen from one of them; usually it is alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol, TypeAlias, get_args

from torch import Tensor

from carousel.offload.plan import WHOLE, Share
from carousel.offload.sources import OldStates, Source, fill
from carousel.offload.states import States

__all__ = ["CALLS", "Alone", "Call", "Meeting", "Team"]

Call: TypeAlias = Literal[
    "TieredAdamW(...)",
    "TieredAdamW.resume",
    "opening the states",
    "step",
    "an update",
    "a move of the states",
    "commit",
    "state_dict",
    "load_state_dict",
    "export",
]
"""What all processes do at the same time."""

CALLS: tuple[Call, ...] = get_args(Call)


class Meeting:
    """What a process says before it goes on, and what it has heard when all have said theirs.

    Attributes:
        facts: makes what has to be the same everywhere, at most `MOST_FACTS`.
        tell: numbers, at most `MOST_NUMBERS`.
        told: the numbers of each process, by rank.
    """

    MOST_FACTS = 6
    MOST_NUMBERS = 2

    def __init__(self) -> None:
        self.facts: Callable[[], Mapping[str, object]] = dict
        self.tell: Sequence[int] = ()
        self.told: list[list[int]] = []


class Team(Protocol):
    """The processes.

    Attributes:
        share: the part of the work that this one has.
    """

    share: Share

    def together(self, call: Call) -> AbstractContextManager[Meeting]:
        """A block that every process enters; they go on when all of them have come through.

        Raises:
            BadInputError: another one refused, does something else, or differs in a fact.
            WorkerError: another one failed or is gone.
        """
        ...

    def old_states(self, states: States, numbers: Mapping[int, int]) -> Source:
        """A source of states that are replaced; see `OldStates`."""
        ...

    def fill(
        self, states: States, source: Source, params: Sequence[Tensor], step: int, *, every: bool
    ) -> None:
        """Give new states their content from `old_states`; see `sources.fill`."""

    def complete(self, states: States, params: Sequence[Tensor]) -> None:
        """Give parameters, one-dimensional by number, the values that others have read."""


class Alone:
    """One process that does all the work.

    Example:
        >>> with Alone().together("step") as meeting:
        ...     meeting.tell = [3]
        >>> meeting.told
        [[3]]
    """

    share: Share = WHOLE

    @contextmanager
    def together(self, call: Call) -> Iterator[Meeting]:  # noqa: ARG002 - of the protocol
        """See `Team.together`."""
        meeting = Meeting()
        yield meeting
        meeting.told = [list(meeting.tell)]

    def old_states(self, states: States, numbers: Mapping[int, int]) -> Source:
        """See `Team.old_states`."""
        return OldStates(states, numbers)

    def fill(
        self, states: States, source: Source, params: Sequence[Tensor], step: int, *, every: bool
    ) -> None:
        """See `Team.fill`."""
        fill(states, source, params, step, every=every)

    def complete(self, states: States, params: Sequence[Tensor]) -> None:
        """See `Team.complete`; this one has read everything."""
