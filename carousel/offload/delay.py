"""The delayed parameter update: a step's arithmetic is done under the next forward and backward.

After ZeRO-Offload (Ren et al., USENIX ATC 2021, section 5.2), which leaves open what happens to
schedulers, clipping, overflows and checkpoints. Here: what a gradient is applied with (learning
rates, clipping, the scale) is what held when it was handed in; one that overflowed is dropped; Adam
counts the updates that are applied; a commit is always that of a gradient that was applied, so no
pending one is ever saved, and resuming goes on as after a `flush`.

The worker writes new values beside the parameters. They become the parameters' values at the next
`step` or `settle`, on the caller's thread, so no forward or backward pass sees half of an update.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from carousel.errors import BadInputError
from carousel.offload.aside import Aside
from carousel.offload.book import Book, Groups, State
from carousel.offload.commit import Moment
from carousel.offload.roster import Roster
from carousel.offload.stepping import Scaling, apply_now, usable
from carousel.offload.sweep import Sweep
from carousel.offload.update import Update

__all__ = ["Delayed"]

logger = logging.getLogger("carousel.offload")


class Delayed:
    """One step behind: `step` publishes what the last one led to, and hands its gradients on.

    Args:
        book: of the optimizer; its settings say which step is the first to be delayed.
    """

    def __init__(self, book: Book) -> None:
        self._book, self._first = book, book.settings.delay_from
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="carousel-offload-delay")
        self._pending: _Pending | None = None
        self._aside: tuple[Roster, Aside] | None = None
        book.shelf.users.append(self._end)

    @torch.no_grad()
    def step(self, groups: Groups, state: State, scaling: Scaling) -> None:
        """Finish the step before, and begin this one; see `Stepping`.

        Raises:
            BadInputError: a parameter was changed since the last step, too.
        """
        book = self._book
        book.shelf.check()
        self._refuse_changed(state)
        if book.settings.write_limit is not None:
            self._wait()  # what the pending step writes counts
        wanted = usable(book, groups, state, scaling)
        self._finish()
        if not wanted:
            return
        book.follow(groups, state)
        if book.steps + 1 < self._first:
            apply_now(book, groups, state, scaling.grad_scale)
        else:
            self._hand_on(groups, state, scaling)

    def check(self) -> None:
        """What is pending is whole; see `settle`."""

    @torch.no_grad()
    def settle(self, groups: Groups, state: State) -> None:  # noqa: ARG002 - of the protocol
        """Wait for the step that is pending, and give the parameters their new values.

        Raises:
            BadInputError: a parameter was changed since that step; nothing was changed.
            CarouselError: what a thread met; the last commit is intact.
        """
        self._refuse_changed(state)
        self._finish()

    @torch.no_grad()
    def close(self) -> None:
        """Wait for the step that is pending, publish it, and end the thread.

        Raises:
            CarouselError: the step failed; the last commit is intact.
        """
        self._end()
        pending, self._pending, self._aside = self._pending, None, None
        if pending is None:
            return
        if pending.done.exception() is not None:
            self._book.shelf.check()
        if pending.changed():
            logger.warning("parameters that were changed after a step do not get its update")
        pending.publish()

    def _end(self) -> None:
        """End the thread when it is done; on whichever thread, so nothing is published."""
        self._pool.shutdown(wait=True)

    def _refuse_changed(self, state: State) -> None:
        if self._pending is None:
            return
        for one in self._pending.changed():
            if one.is_state_of(state):
                raise BadInputError(
                    f"a parameter of shape {tuple(one.param.shape)} was changed while an update of "
                    "it was pending",
                    fix="call flush() before changing parameters; to keep this change, remove the "
                    "parameter's state or load a state_dict",
                )

    def _finish(self) -> None:
        self._wait()
        if self._pending is not None:
            self._pending.publish()
            self._pending = None

    def _wait(self) -> None:
        if self._pending is not None:
            wait([self._pending.done])
            self._book.shelf.check()

    def _hand_on(self, groups: Groups, state: State, scaling: Scaling) -> None:
        """Take all that the step depends on from the caller, and have it applied."""
        book = self._book
        due = book.is_due(book.steps + 1)
        if due:
            book.renew_payload()
        with book.shelf.unbroken():
            update, moving = self._prepare(groups, state, scaling)
            visits = update.visits(update.active)
            sweep = book.begin(visits)
            book.expect(visits)
            moment = book.moment(groups, state) if due else None
            done = self._pool.submit(self._apply, update, sweep, moment)
            self._pending = _Pending(moving, done)

    def _prepare(
        self, groups: Groups, state: State, scaling: Scaling
    ) -> tuple[Update, list[_Moving]]:
        book, aside = self._book, self._place()
        params = book.roster.params
        given = {n: param.grad for n, param in enumerate(params) if param.grad is not None}
        values = aside.values(list(given))
        scale = None if scaling.grad_scale is None else scaling.grad_scale.clone()
        update = book.prepare([_frozen(group) for group in groups], state, scale, values)
        update.active.update(book.activate(given, state, aside.keep(given)))
        counts = {number: active.step for number, active in update.active.items()}
        return update, [_Moving(params[n], value, counts[n]) for n, value in values.items()]

    @torch.no_grad()
    def _apply(self, update: Update, sweep: Sweep, moment: Moment | None) -> None:
        """On the worker: the arithmetic and the commit; the shelf remembers what goes wrong."""
        book = self._book
        with book.shelf.unbroken():
            book.apply(update, sweep)
            if moment is not None:
                book.publish(moment, update.written)
            book.read_ahead()

    def _place(self) -> Aside:
        """Made anew when the parameters are others; the old one goes before that."""
        roster = self._book.roster
        if self._aside is None or self._aside[0] is not roster:
            self._aside = None
            self._aside = roster, Aside(roster.specs)
        return self._aside[1]


class _Moving:
    """A parameter, and where its next value is going to be.

    Args:
        param: live.
        value: one-dimensional.
        count: Adam's step count of it, by which its state is recognised.
    """

    def __init__(self, param: Tensor, value: Tensor, count: Tensor) -> None:
        self.param, self.value, self.count = param, value, count
        self._version = self._now()

    @property
    def changed(self) -> bool:
        """Whether somebody else wrote to the parameter since."""
        return self._now() != self._version

    def is_state_of(self, state: State) -> bool:
        """Whether the parameter's state is still the one that the step updates."""
        kept: Mapping[str, Any] = state.get(self.param) or {}
        return kept.get("step") is self.count

    def publish(self) -> None:
        """Give the parameter its new value, unless it was changed."""
        if not self.changed:
            self.param.copy_(self.value.view(self.param.shape))

    def _now(self) -> tuple[int, int]:
        return self.param._version, self.param.data_ptr()


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step that was handed on.

    Args:
        moving: its parameters.
        done: when the worker has applied it, or has failed to.
    """

    moving: Sequence[_Moving]
    done: Future[None]

    def changed(self) -> list[_Moving]:
        """Those that somebody else wrote to since."""
        return [one for one in self.moving if one.changed]

    def publish(self) -> None:
        """Give the parameters their new values."""
        for one in self.moving:
            one.publish()


def _frozen(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's hyper-parameters as they are now."""
    return {name: _copied(value) for name, value in group.items() if name != "params"}


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple | list):
        return tuple(_copied(item) for item in value)
    return value
