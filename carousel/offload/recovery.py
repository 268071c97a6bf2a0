"""From a commit back to parameters and states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from carousel.errors import SchemaMismatchError, StorageCorruptedError
from carousel.offload.commit import Commit, unpack_payload
from carousel.offload.home import Home
from carousel.offload.plan import Plan
from carousel.offload.record import PARAM
from carousel.offload.roster import Roster
from carousel.offload.settings import OffloadSettings
from carousel.offload.shelf import Shelf

__all__ = ["Recovery"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """A commit that fits an optimizer's parameters, read and checked whole.

    Args:
        shelf: the states, open.
        commit: that was found.
        roster: the optimizer's parameters.
        payload: of the caller.
    """

    shelf: Shelf
    commit: Commit
    roster: Roster
    payload: dict[str, Any] | None

    @staticmethod
    def of(settings: OffloadSettings, roster: Roster) -> Recovery:
        """The newest commit of a folder.

        Raises:
            BadInputError: there is none.
            SchemaMismatchError: it is of other parameters.
            StorageError: a record is not what was committed, or the folder cannot be used.
        """
        folder = settings.folder
        assert folder is not None
        home = Home(
            folder,
            durability=settings.durability,
            io=settings.io,
            write_limit=settings.write_limit,
        )
        try:
            plan, options, commit = home.read()
            _check_fit(plan, commit, roster)
            payload = unpack_payload(commit.moment.payload)
            masters = bool(options["masters"])
            shelf = Shelf(settings.wishes(masters=masters), home)
            shelf.go_on(plan, commit)
        except BaseException:
            home.close()
            raise
        recovery = Recovery(shelf, commit, roster, payload)
        try:
            recovery._verify()
        except BaseException:
            shelf.close_quietly()
            raise
        return recovery

    @property
    def steps(self) -> int:
        """Steps of the optimizer that are in the commit."""
        return self.commit.moment.step

    @property
    def payload_bytes(self) -> bytes:
        """The payload as it was committed."""
        return self.commit.moment.payload

    @torch.no_grad()
    def apply(self, groups: Sequence[dict[str, Any]], state: dict[Tensor, Any]) -> Roster:
        """Give an optimizer's parameters, groups and state what was committed.

        Returns:
            The parameters as the commit's plan knows them.
        """
        for group, saved in zip(groups, self.commit.moment.groups, strict=True):
            values = {k: v for k, v in saved.items() if k != "count"}
            group.update({**values, "betas": tuple(values["betas"])})
        for param, step in zip(self.roster.params, self.commit.moment.param_steps, strict=True):
            if step is not None:
                state[param] = {"step": torch.tensor(step, dtype=torch.float32, device="cpu")}
        flat = [param.detach().view(-1) for param in self.roster.params]
        states = self.shelf.states
        for chunk in states.plan.chunks:
            fields = states.read_record(chunk.index)
            if fields is None:
                continue
            for segment in chunk.segments:
                here = slice(segment.offset, segment.offset + segment.length)
                there = slice(segment.start, segment.start + segment.length)
                flat[segment.param][there].copy_(fields[PARAM][here])
        return Roster(self.roster.params, self.roster.groups, states.plan.specs)

    def _verify(self) -> None:
        """Read every record once, so that damage shows before anything is changed."""
        for chunk in self.shelf.states.plan.chunks:
            self.shelf.states.read_record(chunk.index)


def _check_fit(plan: Plan, commit: Commit, roster: Roster) -> None:
    def shapes(specs: Sequence[Any]) -> list[tuple[Any, str]]:
        return [(tuple(spec.shape), spec.dtype) for spec in specs]

    if shapes(plan.specs) != shapes(roster.specs):
        raise SchemaMismatchError(
            f"the commit is of {_described(plan.specs)} and the optimizer has "
            f"{_described(roster.specs)}",
            fix="make the model as it was then",
        )
    counts = [int(group["count"]) for group in commit.moment.groups]
    have = [roster.groups.count(number) for number in range(max(roster.groups, default=-1) + 1)]
    if counts != have:
        raise SchemaMismatchError(
            f"the commit has groups of {counts} parameters and the optimizer of {have}",
            fix="give the groups as they were then",
        )
    if len(commit.moment.param_steps) != len(plan.specs):
        raise StorageCorruptedError("the commit record does not fit its plan")


def _described(specs: Sequence[Any]) -> str:
    return f"{len(specs)} parameters of {sum(spec.numel for spec in specs)} elements"
