"""From a commit back to parameters and states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from carousel.errors import BadInputError, SchemaMismatchError, StorageCorruptedError
from carousel.offload.commit import Commit, unpack_payload
from carousel.offload.home import Home
from carousel.offload.plan import WHOLE, Plan
from carousel.offload.record import PARAM
from carousel.offload.roster import Roster
from carousel.offload.settings import OffloadSettings
from carousel.offload.shelf import Shelf
from carousel.offload.team import Team
from carousel.offload.worlds import refuse_other_worlds

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
    def of(settings: OffloadSettings, roster: Roster, team: Team) -> Recovery:
        """The newest commit of a folder; of several ranks, the newest that all of them have.

        Raises:
            BadInputError: there is none.
            SchemaMismatchError: it is of other parameters.
            StorageError: a record is not what was committed, or the folder cannot be used.
        """
        home = _open_home(settings, team)
        try:
            with team.together("opening the states"):
                plan, options, commit = home.read()
                _check_fit(plan, commit, roster)
                payload = unpack_payload(commit.moment.payload)
                masters = bool(options["masters"])
                shelf = Shelf(settings.wishes(masters=masters), home, team)
                shelf.go_on(plan, commit)
        except BaseException:
            home.close()
            raise
        recovery = Recovery(shelf, commit, roster, payload)
        try:
            with team.together("opening the states"):
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
        self.shelf.team.complete(states, flat)
        return Roster(self.roster.params, self.roster.groups, states.plan.specs)

    def _verify(self) -> None:
        """Read every record once, so that damage shows before anything is changed."""
        for chunk in self.shelf.states.plan.chunks:
            self.shelf.states.read_record(chunk.index)


def _open_home(settings: OffloadSettings, team: Team) -> Home:
    """The folder, at the newest commit that the whole team has."""
    assert settings.folder is not None
    home: Home | None = None
    try:
        with team.together("opening the states") as meeting:
            refuse_other_worlds(settings)
            home = Home(
                settings.folder,
                durability=settings.durability,
                io=settings.io,
                write_limit=settings.write_limit,
                ranks=settings.share != WHOLE,
            )
            meeting.tell = [home.newest]
        number = min(newest for (newest,) in meeting.told)
        if number == 0 and settings.share != WHOLE:
            raise BadInputError(
                f"{settings.path} holds no commit that all ranks have",
                fix="check the path, or start with TieredAdamW(..., fresh=True)",
            )
        with team.together("opening the states"):
            home.require(number)
        with team.together("opening the states"):
            home.go_back_to(number)
    except BaseException:
        if home is not None:
            home.close()
        raise
    return home


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
