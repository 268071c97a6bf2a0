"""What an optimizer knows and does, apart from being an optimizer of torch.

The parameter groups and the state are torch's and belong to the caller, who may replace either at
any time, so they are handed in with every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from carousel.errors import BadInputError
from carousel.offload.checks import plain_group, values_of
from carousel.offload.commit import Moment, pack_payload
from carousel.offload.engine import Visit
from carousel.offload.link import Link
from carousel.offload.loading import Loaded
from carousel.offload.roster import Roster, digest_of
from carousel.offload.settings import OffloadSettings
from carousel.offload.shelf import Shelf
from carousel.offload.sources import MASTER, Packed, fill, gather
from carousel.offload.states import States
from carousel.offload.sweep import Sweep
from carousel.offload.update import Active, Update, copy_params, flatten

__all__ = ["Book", "Groups", "Payload", "State", "facts_of", "refuse_large"]

Groups: TypeAlias = Sequence[dict[str, Any]]
State: TypeAlias = MutableMapping[Tensor, Any]

Payload: TypeAlias = Callable[[], Mapping[str, Any]]
"""Makes what is committed with the states, such as a scheduler's state."""


class Book:
    """Parameters, their states, and the commits.

    Args:
        settings: of the caller.
        roster: the parameters.
        shelf: their states.
        link: to where they are.

    Raises:
        WorkerError: the link cannot have the RAM that it needs.

    Attributes:
        steps: that were taken.
        payload: what is committed with the states.
        make_payload: makes it anew at every commit, if the caller gave such a function.
    """

    def __init__(self, settings: OffloadSettings, roster: Roster, shelf: Shelf, link: Link) -> None:
        self.settings, self.roster, self.shelf, self.link = settings, roster, shelf, link
        self._fit_link()
        self.steps = 0
        self.payload = b""
        self.make_payload: Payload | None = None
        self._scratch: Tensor | None = None

    def follow(self, groups: Groups, state: State) -> None:
        """Move the states if parameters were replaced, added, removed or unfrozen.

        Raises:
            BadInputError: a parameter has state that cannot be its own.
        """
        if self.roster.holds(groups, state):
            return
        fresh = Roster.of(groups, state)
        numbers = self.roster.carried(fresh, state)
        states = self.shelf.states
        team = self.shelf.team

        def refill(new: States, step: int, every: bool) -> None:
            source = team.old_states(states, numbers)
            team.fill(new, source, fresh.params, step, every=every)

        self.shelf.move(fresh, refill, lambda: self._moment(fresh, groups, state))
        self.roster = fresh

    def update(
        self,
        groups: Groups,
        state: State,
        grad_scale: Tensor | None,
        grads: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Take a step; parameters and gradients were checked.

        Args:
            groups: with the hyper-parameters that it goes by.
            state: of before it.
            grad_scale: what gradients are divided by.
            grads: by number, None: those of the parameters.

        Raises:
            CarouselError: what a thread met; the last commit is intact.
        """
        update = self.prepare(groups, state, grad_scale)
        update.active.update(self.activate(range(len(self.roster.params)), state, grads))
        visits = update.visits(update.active)
        self.apply(update, self.begin(visits))
        self.expect(visits)

    def prepare(
        self,
        groups: Groups,
        state: State,
        grad_scale: Tensor | None = None,
        targets: Mapping[int, Tensor] | None = None,
    ) -> Update:
        """A step that updates nothing yet.

        Args:
            groups: with the hyper-parameters that it goes by.
            state: of before it.
            grad_scale: what gradients are divided by.
            targets: by number, one-dimensional: what gets the new values in place of the parameter.

        Raises:
            WorkerError: the link cannot have the RAM that it needs; nothing was changed.
        """
        self._fit_link()
        states, params = self.shelf.states, self.roster.params
        return Update(
            states.plan,
            [flatten(param) for param in params],
            {number for number, param in enumerate(params) if state.get(param)},
            groups=groups,
            scratch=self._scratch_of(states.room.scratch_bytes // 4),
            grad_scale=grad_scale,
            targets=targets or {},
            link=self.link,
        )

    def activate(
        self, numbers: Iterable[int], state: State, grads: Mapping[int, Tensor] | None = None
    ) -> dict[int, Active]:
        """Those of some parameters that have gradients, their steps counted up.

        Args:
            numbers: of the parameters.
            state: where the steps are.
            grads: by number, None: those of the parameters.
        """
        active: dict[int, Active] = {}
        for number in numbers:
            param = self.roster.params[number]
            grad = param.grad if grads is None else grads.get(number)
            if grad is None:
                continue
            kept = state.setdefault(param, {})
            fresh = not kept
            if "step" not in kept:
                kept["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            group = self.roster.groups[number]
            active[number] = Active(flatten(grad), kept["step"], group, fresh)
        torch._foreach_add_([one.step for one in active.values()], 1)
        return active

    def begin(self, visits: Sequence[Visit]) -> Sweep:
        """Count a step, and pass over these chunks for it."""
        self.steps += 1
        return self.shelf.states.sweep(visits, self.steps)

    def apply(self, update: Update, sweep: Sweep) -> None:
        """Do the arithmetic of a step that was begun, on whichever thread.

        Raises:
            CarouselError: what a thread met; the last commit is intact.
        """
        with self.shelf.unbroken(), update.crossing(sweep.rest):
            for lent in sweep.runs():
                update.apply(lent)

    def expect(self, visits: Sequence[Visit]) -> None:
        """Say which chunks a next step is going to want, if it is like this one."""
        self._likely = [Visit(visit.chunk, load=True) for visit in visits]

    def read_ahead(self) -> None:
        """Begin to read what a next step like the last one wants."""
        self.shelf.states.ahead(self._likely)

    def commit_if_due(self, groups: Groups, state: State) -> None:
        """Make the step that was taken the recovery point, if it is one of those.

        Raises:
            CarouselError: what a thread met; the last commit is intact.
        """
        if self.is_due(self.steps):
            self.renew_payload()
            self.commit(groups, state)

    def is_due(self, step: int) -> bool:
        """Whether this step is to be a recovery point."""
        every = self.settings.commit_every
        return self.settings.recoverable and every > 0 and step % every == 0

    def renew_payload(self) -> None:
        """Ask the caller, on the caller's thread, for what is committed with the states."""
        if self.make_payload is not None:
            self.payload = pack_payload(self.make_payload())

    def commit(self, groups: Groups, state: State) -> None:
        """Make this moment the recovery point.

        Raises:
            CarouselError: what a thread met; the last commit is intact.
        """
        params = [flatten(param) for param in self.roster.params]
        self.publish(self.moment(groups, state), params)

    def moment(self, groups: Groups, state: State) -> Moment:
        """What a commit of the step that was begun last has to say."""
        return self._moment(self.roster, groups, state)

    def publish(self, moment: Moment, params: Sequence[Tensor]) -> None:
        """Make a moment the recovery point, on whichever thread.

        Args:
            moment: of the step that was applied last.
            params: by number, one-dimensional, as they are after it.

        Raises:
            CarouselError: what a thread met; the last commit is intact.
        """
        self.shelf.states.commit(moment, lambda chunk, fields: copy_params(params, chunk, fields))

    def replace(self, loaded: Loaded, groups: Groups, state: State) -> None:
        """Give the states another content; `groups` and `state` have theirs already."""
        fresh = Roster.of(groups, state)

        def refill(new: States, step: int, every: bool) -> None:
            fill(new, Packed(loaded.state), fresh.params, step, every=every)

        self.shelf.move(fresh, refill, lambda: self._moment(fresh, groups, state))
        self.roster = fresh

    def states_of(
        self, numbers: Sequence[int], state: State
    ) -> tuple[dict[Tensor, dict[str, Tensor]], dict[int, Tensor]]:
        """States of parameters in new tensors.

        Returns:
            By parameter what torch keeps of it, and by number the masters of 16-bit parameters.
        """
        self.shelf.states.flush()
        every = range(len(self.roster.params))
        source = self.shelf.team.old_states(self.shelf.states, dict(zip(every, every, strict=True)))
        full: dict[Tensor, dict[str, Tensor]] = {}
        masters: dict[int, Tensor] = {}
        for number in numbers:
            param, spec = self.roster.params[number], self.roster.specs[number]
            kept = state.get(param)
            if kept:
                dtype = self.shelf.states.dtype_of(spec.dtype)
                made = gather(source, param, number, dtype=dtype, amsgrad=spec.amsgrad)
                if MASTER in made:
                    masters[number] = made.pop(MASTER)
                full[param] = {"step": kept["step"].clone(), **made}
        return full, masters

    def facts(self, groups: Groups, state: State) -> dict[str, object]:
        """What is the same on all ranks that share the work.

        Raises:
            BadInputError: a parameter has state that cannot be its own.
        """
        same = self.roster.holds(groups, state)
        roster = self.roster if same else Roster.of(groups, state)
        known = {id(param) for param in self.roster.params}
        fresh = [param for param in roster.params if id(param) not in known]
        if not same:
            self.roster.carried(roster, state)
        return {
            "parameters": (roster.digest, same),
            "hyper-parameters": [values_of(group) for group in groups],
            "numbers of steps": self.steps,
            "values of new parameters": digest_of(fresh),
        }

    def first_facts(self, groups: Groups) -> dict[str, object]:
        """What is the same on all ranks that make a new optimizer."""
        return {
            **facts_of(self.settings, self.roster),
            "hyper-parameters": [values_of(group) for group in groups],
            "sizes of chunks, which follow from ram_budget,": self.shelf.states.plan.chunk_numel,
            "values of parameters": digest_of(self.roster.params),
        }

    def check_groups(self, groups: Groups) -> None:
        """Refuse hyper-parameters that cannot be committed, if there are commits.

        Raises:
            BadInputError: one is no plain value.
        """
        if self.settings.recoverable:
            _plain(groups)

    def close(self) -> None:
        """Give the states' folder and the link's RAM back; calling it again is fine.

        Raises:
            CarouselError: what a thread met.
        """
        try:
            self.link.close()
        finally:
            self.shelf.close()

    def _fit_link(self) -> None:
        states = self.shelf.states
        self.link.fit(states.room.buckets, masters=states.wishes.masters)

    def _moment(self, roster: Roster, groups: Groups, state: State) -> Moment:
        kept = [state.get(param) for param in roster.params]
        steps = [float(one["step"]) if one else None for one in kept]
        return Moment(self.steps, steps, _plain(groups), self.payload)

    def _scratch_of(self, numel: int) -> Tensor | None:
        """Room for a chunk's gradients in fp32, made once."""
        if numel and (self._scratch is None or len(self._scratch) < numel):
            self._scratch = torch.empty(numel, dtype=torch.float32, device="cpu")
        return self._scratch if numel else None


def _plain(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [plain_group(group, len(group["params"])) for group in groups]


def facts_of(settings: OffloadSettings, roster: Roster) -> dict[str, object]:
    """What is the same on all ranks, before there are states."""
    frozen = [p for p, s in zip(roster.params, roster.specs, strict=True) if not s.stored]
    return {
        "parameters": roster.digest,
        "options": settings.common,
        "values of frozen parameters": digest_of(frozen),
    }


def refuse_large(book: Book) -> None:
    """Refuse to hold all states at once where the budget does not allow it.

    Raises:
        BadInputError: it does not.
    """
    budget, needed = book.settings.budget, book.shelf.states.whole_bytes
    if budget is not None and needed > budget:
        raise BadInputError(
            f"state_dict() would take {needed} bytes and ram_budget is {budget}",
            fix="use export(path), which streams it into a file",
        )
