"""A step that is applied chunk by chunk while its gradients are still being made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from carousel.errors import BadInputError
from carousel.offload.book import Book, Groups, State
from carousel.offload.checks import values_of
from carousel.offload.engine import Visit
from carousel.offload.plan import Chunk
from carousel.offload.ring import Fields

__all__ = ["Begun", "numbers_of"]


class Begun:
    """A step of which some chunks are applied, and others wait for their gradients.

    Chunks in RAM are applied as soon as they are final. Those from the file come in one order,
    that of the last step; one that is final out of its turn waits for those before it, so nobody
    ever waits for a chunk that the readers have no buffer for.

    Args:
        book: of the optimizer, whose parameters are those of the groups.
        groups: with the hyper-parameters that it goes by.
        state: of before it.
        order: the chunks, in the order in which they were final last time.
    """

    def __init__(self, book: Book, groups: Groups, state: State, order: Sequence[int]) -> None:
        states = book.shelf.states
        self._book, self._states, self._params = book, states, book.roster.params
        self._update = book.prepare(groups, state)
        self._values = [values_of(group) for group in groups]
        self._pinned = states.room.pinned
        self._to_go = Counter(n for chunk in states.plan.chunks for n in numbers_of(chunk))
        self._steps: dict[int, Tensor] = {}
        self._final: dict[int, None] = {}
        self._applied: set[int] = set()
        visits = {v.chunk: v for v in self._update.visits(range(len(self._params)))}
        self._sequence = [visits[c] for c in order if c >= self._pinned and c in visits]
        self._sweep = book.begin(self._sequence)

    def add(self, final: Iterable[int], state: State) -> None:
        """These chunks are final: apply what can be applied, and free its gradients.

        Raises:
            CarouselError: what a thread met.
        """
        for number in final:
            self._final[number] = None
            if number < self._pinned:
                self._apply_resident(number, state)
        while (following := self._sweep.next) is not None and following.index in self._final:
            with self._sweep.visit() as (chunk, fields):
                self._apply(chunk, fields, state)

    def check(self, groups: Groups, state: State) -> None:
        """Refuse a rest of the step that would not be of the same step.

        Raises:
            BadInputError: parameters, hyper-parameters or states were changed since it began, or a
                gradient came to a chunk that is applied; nothing was changed by this call.
        """
        if not self._book.roster.holds(groups, state):
            raise BadInputError(
                "parameters were added, replaced or unfrozen after backward had begun a step",
                fix="call step() first",
            )
        for number, (group, before) in enumerate(zip(groups, self._values, strict=True)):
            if (now := values_of(group)) != before:
                name = next(name for name in now if now[name] != before[name])
                raise BadInputError(
                    f"{name} of group {number} was {before[name]} in backward and is {now[name]}",
                    fix="change hyper-parameters before backward or after step()",
                )
        for number, param in enumerate(self._params):
            self._check_param(number, param, state)

    def finish(self, taken: Mapping[int, Tensor], state: State) -> None:
        """Apply the chunks that remain.

        Args:
            taken: gradients of parameters that are not applied yet, by number.
            state: of the optimizer.

        Raises:
            CarouselError: what a thread met.
        """
        for number, grad in taken.items():
            self._params[number].grad = grad
        wanted = [n for n, param in enumerate(self._params) if param.grad is not None]
        self._activate(wanted, state)  # those without elements, too
        rest = {v.chunk: v for v in self._update.visits(wanted) if v.chunk not in self._applied}
        for resident in [number for number in rest if number < self._pinned]:
            self._apply_resident(resident, state)
        self._sweep.turn_to(self._in_sequence(rest))
        for chunk, fields in self._sweep:
            self._apply(chunk, fields, state)
        for number in wanted:
            self._params[number].grad = None

    @property
    def order(self) -> list[int]:
        """Chunks by number, in the order in which they were final this time."""
        return list(self._final)

    def _check_param(self, number: int, param: Tensor, state: State) -> None:
        what = f"a parameter of shape {tuple(param.shape)}"
        if param.grad is not None and not self._to_go[number]:
            raise BadInputError(
                f"{what} has another gradient, and was updated in backward",
                fix="set it to None; gradients cannot be changed after backward",
            )
        count = self._steps.get(number)
        if count is not None and (state.get(param) or {}).get("step") is not count:
            raise BadInputError(
                f"the state of {what} was removed after backward had updated it",
                fix="call step() first",
            )
        if param.grad is not None and count is None and self._touched(number):
            raise BadInputError(
                f"{what} has got a gradient after its chunk was updated in backward",
                fix="set requires_grad before backward, or use update_in='step'",
            )

    def _touched(self, number: int) -> bool:
        chunks = self._states.plan.chunks
        return any(number in numbers_of(chunks[chunk]) for chunk in self._applied)

    def _in_sequence(self, rest: Mapping[int, Visit]) -> list[Visit]:
        """Chunks from the file: those that are being read already, then the others."""
        begun = [visit for visit in self._sequence if visit.chunk in rest]
        known = {visit.chunk for visit in begun}
        others = [v for c, v in rest.items() if c >= self._pinned and c not in known]
        return begun + others

    def _apply_resident(self, chunk: int, state: State) -> None:
        self._apply(self._states.plan.chunks[chunk], self._states.borrow(chunk), state)

    def _apply(self, chunk: Chunk, fields: Fields, state: State) -> None:
        numbers = numbers_of(chunk)
        self._activate(numbers, state)
        self._update.apply([(chunk, fields)])  # parameters are on the host, so nothing has to cross
        self._applied.add(chunk.index)
        self._final.setdefault(chunk.index)
        for number in numbers:
            self._to_go[number] -= 1
            if not self._to_go[number] and number in self._update.active:
                del self._update.active[number]
                self._params[number].grad = None

    def _activate(self, numbers: Iterable[int], state: State) -> None:
        """Count a step of those that have a gradient, once."""
        fresh = [n for n in numbers if n not in self._steps and self._params[n].grad is not None]
        if fresh:
            made = self._book.activate(fresh, state)
            self._update.active.update(made)
            self._steps.update({number: active.step for number, active in made.items()})


def numbers_of(chunk: Chunk) -> list[int]:
    """Numbers of a chunk's parameters, each once."""
    return list(dict.fromkeys(segment.param for segment in chunk.segments))
