"""A step that several ranks share: mean gradients, each its own chunks, and the values to all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from struct import pack, unpack

import torch
from torch import Tensor

from carousel.offload.book import Book, Groups, State
from carousel.offload.checks import check_gradients, refuse_scaled
from carousel.offload.exchange import NONE, PLAIN, WIDE, Exchange
from carousel.offload.forecast import refuse_wear
from carousel.offload.plan import Plan
from carousel.offload.ranks import Ranks
from carousel.offload.stepping import Scaling
from carousel.offload.update import flatten

__all__ = ["InRanks"]


class InRanks:
    """ZeRO-2 under offloaded states (ZeRO-Offload, USENIX ATC 2021, section 4.2).

    The mean of the ranks' gradients takes the place of this rank's own in the chunks that it owns;
    in other places the gradients stay as they are. A parameter that has a gradient on some rank is
    updated on all of them, and where it has none it counts as zeros.

    Nothing is written before all ranks have published the commit before, so the newest commit that
    all of them have is always whole.

    Args:
        book: of the optimizer.
        ranks: that share it.
    """

    def __init__(self, book: Book, ranks: Ranks) -> None:
        self._book, self._ranks = book, ranks
        self._exchange: tuple[Plan, Exchange] | None = None

    @torch.no_grad()
    def step(self, groups: Groups, state: State, scaling: Scaling) -> None:
        """Take the gradients that are there, on all ranks; see `Stepping`.

        Raises:
            BadInputError: another rank refused, or the ranks differ; nothing was changed.
            WorkerError: another rank failed, or is gone.
        """
        book = self._book
        with self._ranks.together("step") as meeting:
            book.shelf.check()
            check_gradients(groups, book.link.device)
            book.check_groups(groups)
            refuse_wear(book, groups, state, waits=True)
            refuse_scaled(book.settings.clip_norm, scaling.grad_scale)
            meeting.facts = lambda: book.facts(groups, state)
            meeting.tell = [scaling.overflowed, _bits(scaling.grad_scale)]
            book.shelf.states.await_commit()
        if any(overflowed for overflowed, _ in meeting.told):
            return
        kinds = self._kinds(groups)
        if not any(kinds):
            return
        book.follow(groups, state)
        with book.shelf.unbroken():
            scales = [_number(bits) for _, bits in meeting.told]
            self._take(kinds, groups, state, scaling.grad_scale, scales)

    def check(self) -> None:
        """No step is half done when it returns."""

    def settle(self, groups: Groups, state: State) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Other ranks need not be there, and are not waited for."""
        self._exchange = None

    def _take(
        self,
        kinds: Sequence[int],
        groups: Groups,
        state: State,
        grad_scale: Tensor | None,
        scales: Sequence[float],
    ) -> None:
        book, exchange = self._book, self._traffic()
        grads = self._gradients(kinds)
        own = scales[self._ranks.share.rank]
        exchange.average(kinds, grads, [own / scale for scale in scales])
        self._clip(exchange, kinds, grads)
        with self._ranks.together("an update"):
            book.update(groups, state, grad_scale, {**self._of_others(kinds), **grads})
        exchange.spread(kinds, [flatten(param) for param in book.roster.params])
        book.commit_if_due(groups, state)
        if book.settings.durability == "durable":
            with self._ranks.together("commit"):
                book.shelf.states.await_commit()
        book.read_ahead()

    def _kinds(self, groups: Groups) -> list[int]:
        """What gradients there are by number, on any rank."""
        params = [param for group in groups for param in group["params"]]
        own = torch.tensor([_kind(param) for param in params], dtype=torch.uint8, device="cpu")
        kinds: list[int] = self._ranks.most(own).tolist()
        return kinds

    def _gradients(self, kinds: Sequence[int]) -> dict[int, Tensor]:
        """Gradients by number, one-dimensional: the caller's, and zeros where a mean is to be."""
        plan, params = self._book.shelf.states.plan, self._book.roster.params
        owned = {segment.param for chunk in plan.chunks for segment in chunk.segments}
        return {
            number: _gradient(params[number])
            for number, kind in enumerate(kinds)
            if kind and (number in owned or params[number].grad is not None)
        }

    def _of_others(self, kinds: Sequence[int]) -> dict[int, Tensor]:
        """What stands for gradients that are counted and not used here."""
        params = self._book.roster.params
        return {n: params[n].new_empty(0) for n, kind in enumerate(kinds) if kind}

    def _clip(self, exchange: Exchange, kinds: Sequence[int], grads: Mapping[int, Tensor]) -> None:
        """Clip the norm of all mean gradients, as torch's `clip_grad_norm_` does."""
        limit = self._book.settings.clip_norm
        if limit is None:
            return
        factor = limit / (math.sqrt(exchange.square_sum(kinds, grads)) + 1e-6)
        if not factor >= 1:
            exchange.scale(kinds, grads, factor)

    def _traffic(self) -> Exchange:
        """Made anew when the plan is another one."""
        states = self._book.shelf.states
        if self._exchange is None or self._exchange[0] is not states.plan:
            self._exchange = None
            made = Exchange(self._ranks, states.plan, states.room.pieces)
            self._exchange = states.plan, made
        return self._exchange[1]


def _kind(param: Tensor) -> int:
    if param.grad is None:
        return NONE
    return PLAIN if param.grad.dtype == param.dtype else WIDE


def _gradient(param: Tensor) -> Tensor:
    """A gradient whose elements can be written to."""
    if param.grad is None:
        return torch.zeros_like(param).view(-1)  # takes no RAM where nothing is written
    if not param.grad.is_contiguous():
        param.grad = param.grad.contiguous()
    return flatten(param.grad)


def _bits(scale: Tensor | None) -> int:
    """A scale as the int64 of the same bits."""
    return int(unpack("<q", pack("<d", 1.0 if scale is None else float(scale)))[0])


def _number(bits: int) -> float:
    return float(unpack("<d", pack("<q", bits))[0])
