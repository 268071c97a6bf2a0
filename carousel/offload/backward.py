"""The update within backward: a chunk is updated as soon as its gradients are final.

Its gradients are freed at once, so they are never all there, and the states' traffic is hidden
behind the rest of backward. `step` updates what remains, commits, and begins to read for the next
one. The result is that of updating in `step`, bit for bit: what would make it another one is
refused.

The arithmetic is done on a thread of its own, at most two of the largest parameters behind, so that
backward goes on meanwhile; all of it is done when backward ends. As the thread may write to a
parameter at any time from then on, it counts as changed as soon as its chunk is handed over, and
torch refuses a backward that needs its old value.

A parameter's gradient is looked at when the next one's comes, or when backward ends, not at once:
by then every hook on it has run, whenever it was registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from carousel.errors import BadInputError, CarouselError, StorageError
from carousel.offload.arrivals import Arrivals
from carousel.offload.begun import Begun, numbers_of
from carousel.offload.behind import Behind
from carousel.offload.book import Book, Groups, State
from carousel.offload.checks import check_gradients
from carousel.offload.engine import Visit
from carousel.offload.forecast import refuse_wear
from carousel.offload.hooks import Hooks
from carousel.offload.plan import Plan
from carousel.offload.stepping import AtOnce, Scaling

__all__ = ["InBackward", "Look", "Microbatches"]

Look: TypeAlias = Callable[[], tuple[Groups, State]]
"""The optimizer's groups and state of the moment."""


class Microbatches:
    """Which backward pass of a step it is, where there are several."""

    def __init__(self) -> None:
        self.kind: Literal["only", "earlier", "last"] = "only"

    @contextmanager
    def of(self, kind: Literal["earlier", "last"]) -> Iterator[None]:
        """Backward passes in the block are of this kind."""
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before


class InBackward:
    """Updates chunks within backward, from hooks on the parameters; see `Stepping`.

    Args:
        book: of the optimizer; its parameters are on the CPU.
        look: what hooks have to know.
        microbatches: of the optimizer.
    """

    def __init__(self, book: Book, look: Look, microbatches: Microbatches) -> None:
        self._book, self._look, self._microbatches = book, look, microbatches
        self._hooks = Hooks(self)
        self._hooks.follow(book.roster.params)
        self._pass: _Pass | None = None
        self._accumulated = False
        self._order: tuple[Plan, list[int]] | None = None
        self._behind = Behind(limit=0)
        book.shelf.users.append(self._behind.close)

    @torch.no_grad()
    def come(self, param: Tensor) -> None:
        """A parameter's gradient was made; called within backward.

        Raises:
            BadInputError: it is of a second backward pass; parameters were not changed by it.
        """
        current = self._current(param)
        if current is None or current.left:
            return
        self._use(current)
        current.fresh.append(param)

    @torch.no_grad()
    def step(self, groups: Groups, state: State, scaling: Scaling) -> None:
        """Update what backward has not updated; see `Stepping`.

        Raises:
            BadInputError: something was changed since backward that the step depends on; what
                can be put right may be, and `step` called again.
            StorageError: backward was broken off after it had updated parameters.
        """
        self._book.shelf.check()
        begun = self._begun()
        self._refuse_scaled(scaling)
        if begun is None:
            self._at_once(groups, state, scaling)
        else:
            self._finish(begun, groups, state)
        self._pass, self._accumulated = None, False
        self._hooks.follow(self._book.roster.params)

    def check(self) -> None:
        """Refuse whatever is done between backward and `step`, if that would see half a step.

        Raises:
            BadInputError: backward has updated parameters; nothing was changed.
            StorageError: it was broken off after that.
        """
        if self._begun() is not None:
            raise BadInputError(
                "backward has updated parameters and the step is not finished",
                fix="call step() first",
            )

    def settle(self, groups: Groups, state: State) -> None:  # noqa: ARG002 - of the protocol
        """Nothing is pending after `step`, and before it: see `check`."""
        self.check()

    def close(self) -> None:
        """Remove the hooks; what backward has begun stays without a commit."""
        self._hooks.close()
        self._behind.close()
        self._pass = None

    def _current(self, param: Tensor) -> _Pass | None:
        """The backward pass that the call comes from, begun if need be; None: leave it alone."""
        current, task = self._pass, torch._C._current_graph_task_id()
        if current is not None and current.left:
            return current
        if current is not None and current.over:
            param.grad = None
            raise BadInputError(
                "backward ran twice before step()",
                fix="call step() after each backward; to accumulate gradients, run the earlier "
                "passes in earlier_microbatch() and the last one in last_microbatch(); "
                "checkpoint with use_reentrant=False",
            )
        if current is not None and current.task != task:
            self._begun()
            current = self._pass
        if current is None and self._microbatches.kind == "earlier":
            self._accumulated = True
            return None
        if current is None:
            current = self._pass = self._begin(task)
        return current

    def _begin(self, task: int) -> _Pass:
        """A backward pass, left to `step` where that has to follow or to refuse something."""
        if self._accumulated and self._microbatches.kind == "only":
            self._accumulated = False
            raise BadInputError(
                "gradients were accumulated and this backward is not marked as the last one",
                fix="run it in last_microbatch(); now call zero_grad() and begin the step again",
            )
        book, (groups, state) = self._book, self._look()
        try:
            book.shelf.check()
            book.check_groups(groups)
            refuse_wear(book, groups, state, waits=True)
            left = not book.roster.holds(groups, state)
        except CarouselError:
            left = True
        params = book.roster.params
        expected = {n for n, p in enumerate(params) if p.requires_grad or p.grad is not None}
        made = _Pass(task, params, Arrivals(book.shelf.states.plan, expected), left=left)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(made))
        return made

    @torch.no_grad()
    def _end(self, current: _Pass) -> None:
        """Backward has made all its gradients: take those that could not be applied."""
        if current.left or current is not self._pass:
            return
        self._use(current)
        self._catch_up(current)
        current.over = True
        for number, param in enumerate(current.params):
            if param.grad is not None and self._usable(param):
                current.taken[number], param.grad = param.grad, None

    def _use(self, current: _Pass) -> None:
        """Update by the gradients that came before; an error is for the next call to raise."""
        _, state = self._look()
        fresh, current.fresh = current.fresh, []
        for param in fresh:
            number = current.numbers.get(id(param))
            if number is None or not self._usable(param):
                continue
            try:
                self._arrive(current, number, state)
            except CarouselError:
                current.left = True
                return

    def _arrive(self, current: _Pass, number: int, state: State) -> None:
        with self._book.shelf.unbroken():
            if number in current.arrivals:
                raise BadInputError(
                    f"a parameter of shape {tuple(current.params[number].shape)} has got two "
                    "gradients in one backward",
                    fix="checkpoint with use_reentrant=False, or use update_in='step'",
                )
            final = current.arrivals.add(number)
            if final and current.begun is None:
                groups, _ = self._look()
                order = self._expected_order(current.arrivals)
                self._behind.limit = max(param.numel() for param in current.params)
                current.begun = Begun(self._book, groups, state, order)
            if final and current.begun is not None:
                self._hand_over(current.begun, final, state)

    def _hand_over(self, begun: Begun, final: Sequence[int], state: State) -> None:
        """Have chunks updated, and refuse from now on whatever needs their old values."""
        book = self._book
        chunks = [book.shelf.states.plan.chunks[number] for number in final]
        numbers = {number for chunk in chunks for number in numbers_of(chunk)}
        given = [book.roster.params[n] for n in numbers if book.roster.params[n].grad is not None]
        torch.autograd.graph.increment_version(given)

        def add() -> None:
            with torch.no_grad(), book.shelf.unbroken():
                begun.add(final, state)

        self._behind.hand(sum(chunk.numel for chunk in chunks), add)

    def _catch_up(self, current: _Pass) -> None:
        """Wait for what was handed over; an error of the optimizer's is for the next call."""
        try:
            self._behind.wait()
        except CarouselError:
            current.left = True

    def _usable(self, param: Tensor) -> bool:
        try:
            return check_gradients([{"params": [param]}], self._book.link.device)
        except BadInputError:  # `step` says so, before it changes anything
            return False

    def _expected_order(self, arrivals: Arrivals) -> list[int]:
        """That of the last step; at first that of the plan, which is about the same."""
        if self._order is None or self._order[0] is not self._book.shelf.states.plan:
            return arrivals.chunks
        waited_for = set(arrivals.chunks)
        return [chunk for chunk in self._order[1] if chunk in waited_for]

    def _begun(self) -> Begun | None:
        """What the last backward has begun; nothing is left of one that was broken off before."""
        current = self._pass
        if current is None:
            return None
        with suppress(Exception):  # the shelf remembers it
            self._behind.wait()
        if current.begun is not None and not current.over:
            with self._book.shelf.unbroken():
                raise StorageError(
                    "backward was broken off after it had updated parameters, or runs in another "
                    "one (checkpoint with use_reentrant=False): resume from the last commit, or "
                    "load a state_dict into a new optimizer"
                )
        if not current.over and not current.left:
            self._pass = None
        return current.begun

    def _refuse_scaled(self, scaling: Scaling) -> None:
        if not scaling.given:
            return
        problem = BadInputError(
            "the gradients are scaled, and update_in='backward' uses them before that is known",
            fix="use update_in='step' with a GradScaler",
        )
        if self._begun() is None:
            raise problem
        with self._book.shelf.unbroken():
            raise problem

    def _at_once(self, groups: Groups, state: State, scaling: Scaling) -> None:
        """All of the step, as if there were no hooks, and the gradients freed as if there were."""
        if self._pass is not None:
            self._pass.give_back()
        AtOnce(self._book).step(groups, state, scaling)
        for group in groups:
            for param in group["params"]:
                param.grad = None

    def _finish(self, begun: Begun, groups: Groups, state: State) -> None:
        book, current = self._book, self._pass
        assert current is not None
        check_gradients(groups, book.link.device)
        current.check_alone()
        begun.check(groups, state)
        book.check_groups(groups)
        with book.shelf.unbroken():
            begun.finish(current.taken, state)
        self._order = book.shelf.states.plan, begun.order
        book.expect([Visit(chunk, load=True) for chunk in begun.order])
        book.commit_if_due(groups, state)
        book.read_ahead()


@dataclass(slots=True)
class _Pass:
    """A backward pass.

    Args:
        task: autograd's number of it.
        params: by number.
        arrivals: what has come of it.
        left: nothing more is updated in it.

    Attributes:
        fresh: parameters whose gradients have come and were not looked at yet.
        begun: the step, from the first chunk on.
        over: it has made all its gradients.
        taken: those of them that were not applied in it, by number.
    """

    task: int
    params: Sequence[Tensor]
    arrivals: Arrivals
    left: bool
    fresh: list[Tensor] = field(default_factory=list)
    begun: Begun | None = None
    over: bool = False
    taken: dict[int, Tensor] = field(default_factory=dict)
    numbers: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = {id(param): number for number, param in enumerate(self.params)}

    def check_alone(self) -> None:
        """Refuse gradients that came to parameters whose gradient was taken.

        Raises:
            BadInputError: there is one.
        """
        for number in self.taken:
            if self.params[number].grad is not None:
                raise BadInputError(
                    f"a parameter of shape {tuple(self.params[number].shape)} has another "
                    "gradient than that of backward",
                    fix="set it to None; gradients cannot be changed after backward",
                )

    def give_back(self) -> None:
        """Put gradients that were taken where autograd had put them.

        Raises:
            BadInputError: there are others; nothing was changed.
        """
        self.check_alone()
        for number, grad in self.taken.items():
            self.params[number].grad = grad
        self.taken.clear()
