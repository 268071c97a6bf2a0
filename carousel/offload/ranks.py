"""Several processes that share an optimizer's work, over a process group of torch.

Each rank keeps the states of its own chunks and updates those: the partition of ZeRO-2, made before
states are offloaded (ZeRO-Offload, Ren et al., USENIX ATC 2021, section 4.2). What the ranks do
together begins with a meeting, in which each one tells whether it can and with what; so a value
that one of them refuses, or a disk that fails, is an error on all of them, and nobody waits for
somebody who is not going to come. A rank that died is noticed by the group: at once, where its
connections break, or after the group's timeout.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from carousel.errors import BadInputError, CarouselError, WorkerError
from carousel.offload.exchange import PLAIN, Exchange
from carousel.offload.plan import Share
from carousel.offload.shared import SharedStates, fill_together
from carousel.offload.sources import Source
from carousel.offload.states import States
from carousel.offload.team import CALLS, Alone, Call, Meeting, Team

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Ranks", "team_of"]

logger = logging.getLogger("carousel.offload")

_FINE, _REFUSED, _FAILED = range(3)
_TEXT_BYTES = 1024


def team_of(process_group: ProcessGroup | None) -> Team:
    """The processes of a group, or this one alone.

    Args:
        process_group: None, or a group that this process is in and that can move CPU tensors.

    Raises:
        BadInputError: it cannot be used.

    Example:
        >>> team_of(None).share
        Share(rank=0, world=1)
    """
    if process_group is None:
        return Alone()
    ranks = Ranks(process_group)
    return ranks if ranks.share.world > 1 else Alone()


class Ranks:
    """The processes of a group.

    Every method is called by all of them, in the same order.

    Args:
        group: that this process is in.

    Raises:
        BadInputError: it is no group, this process is not in it, or it cannot move CPU tensors.
    """

    def __init__(self, group: ProcessGroup) -> None:
        import torch.distributed as dist

        if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
            raise BadInputError(
                f"process_group is {group!r}",
                fix="call torch.distributed.init_process_group and give dist.group.WORLD",
            )
        try:
            group._get_backend(torch.device("cpu"))
        except RuntimeError as error:
            raise BadInputError(
                f"process_group has the backend {dist.get_backend(group)}, which moves no CPU "
                "tensors",
                fix='use init_process_group("gloo"), or "cpu:gloo,cuda:nccl"',
            ) from error
        self._dist, self._group = dist, group
        self._all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        self.share = Share(dist.get_rank(group), dist.get_world_size(group))

    @contextmanager
    def together(self, call: Call) -> Iterator[Meeting]:
        """See `Team.together`."""
        meeting, problem = Meeting(), None
        facts: Mapping[str, object] = {}
        try:
            yield meeting
            facts = meeting.facts()
        except Exception as error:
            problem = error
        heads = self.heard(_head(call, meeting.tell, facts, problem))
        calls, verdicts = heads[:, 0].tolist(), heads[:, 1].tolist()
        if any(verdict != _FINE for verdict in verdicts):
            texts = self.heard(_packed(problem))
            if problem is None:
                raise self._of_another(verdicts, texts)
        if problem is not None:
            raise problem
        self._refuse_other_calls(call, calls)
        self._refuse_other_facts(facts, heads)
        meeting.told = heads[:, 2 : 2 + len(meeting.tell)].tolist()

    def old_states(self, states: States, numbers: Mapping[int, int]) -> Source:
        """See `Team.old_states`."""
        return SharedStates(states, numbers, self)

    def fill(
        self, states: States, source: Source, params: Sequence[Tensor], step: int, *, every: bool
    ) -> None:
        """See `Team.fill`."""
        assert isinstance(source, SharedStates)
        fill_together(states, source, params, step, every=every)

    def complete(self, states: States, params: Sequence[Tensor]) -> None:
        """See `Team.complete`."""
        exchange = Exchange(self, states.plan, states.room.pieces)
        exchange.spread([PLAIN] * len(params), params)

    def heard(self, words: Tensor) -> Tensor:
        """What each rank says, (world, n) for words of shape (n,)."""
        out = words.new_empty(self.share.world * len(words))
        self.spread(out, words)
        return out.view(self.share.world, -1)

    def most(self, values: Tensor) -> Tensor:
        """The largest of each value (n,), uint8, over the ranks."""
        with self._waiting():
            self._dist.all_reduce(values, self._dist.ReduceOp.MAX, group=self._group)
        return values

    def merge(self, values: Tensor) -> None:
        """Give everybody, in place, the bytes (n,) of which one rank has each, the others zeros."""
        with self._waiting():
            self._dist.all_reduce(values, group=self._group)

    def spread(self, out: Tensor, own: Tensor) -> None:
        """Put what every rank has, (n,), into (world * n,), by rank."""
        with self._waiting():
            self._all_gather(out, own, group=self._group)

    def trade(self, out: Tensor, own: Tensor) -> None:
        """Give each rank its part of (world * n,), and put what comes for this one into `out`."""
        with self._waiting():
            self._dist.all_to_all_single(out, own, group=self._group)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise WorkerError(
                f"rank {self.share.rank} of {self.share.world} has lost the others: {error}; start "
                "all of them again, and resume from their last common commit"
            ) from error

    def _of_another(self, verdicts: Sequence[int], texts: Tensor) -> CarouselError:
        rank = next(rank for rank, verdict in enumerate(verdicts) if verdict != _FINE)
        problem, _, fix = bytes(texts[rank].tolist()).rstrip(b"\0").partition(b"\0")
        text = f"rank {rank}: {problem.decode(errors='replace')}"
        if verdicts[rank] == _REFUSED:
            return BadInputError(text, fix=fix.decode(errors="replace"))
        return WorkerError(text)

    @staticmethod
    def _refuse_other_calls(call: Call, calls: Sequence[int]) -> None:
        for rank, other in enumerate(calls):
            if CALLS[other] != call:
                raise BadInputError(
                    f"this rank is at {call} and rank {rank} at {CALLS[other]}",
                    fix="make the same calls in the same order on every rank",
                )

    @staticmethod
    def _refuse_other_facts(facts: Mapping[str, object], heads: Tensor) -> None:
        first = 2 + Meeting.MOST_NUMBERS
        for number, (name, value) in enumerate(facts.items()):
            digests = heads[:, first + number].tolist()
            if len(set(digests)) > 1:
                rank = next(rank for rank, other in enumerate(digests) if other != digests[0])
                raise BadInputError(
                    f"{name} differ between rank 0 and rank {rank} (here: {_short(value)})",
                    fix="give every rank the same",
                )


def _head(
    call: Call, tell: Sequence[int], facts: Mapping[str, object], problem: Exception | None
) -> Tensor:
    """What a rank says in a meeting, as int64."""
    verdict = _FINE if problem is None else _FAILED
    if isinstance(problem, BadInputError):
        verdict = _REFUSED
    numbers = [*tell] + [0] * (Meeting.MOST_NUMBERS - len(tell))
    digests = [_digest(value) for value in facts.values()]
    digests += [0] * (Meeting.MOST_FACTS - len(digests))
    return torch.tensor(
        [CALLS.index(call), verdict, *numbers, *digests], dtype=torch.int64, device="cpu"
    )


def _digest(value: object) -> int:
    return xxh3_64_intdigest(repr(value).encode()) >> 1  # int64 has a sign


def _packed(problem: Exception | None) -> Tensor:
    """An error's words in a tensor of fixed size."""
    words: list[str] = []
    if isinstance(problem, BadInputError):
        words = [problem.problem, problem.fix]
    elif problem is not None:
        words = [str(problem) or repr(problem)]
    text = b"\0".join(word.encode()[: _TEXT_BYTES // 2 - 1] for word in words)
    return torch.tensor(list(text.ljust(_TEXT_BYTES, b"\0")), dtype=torch.uint8, device="cpu")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
