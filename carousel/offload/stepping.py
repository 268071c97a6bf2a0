"""When a step's arithmetic is done: at once here; delayed and within backward elsewhere.

A stepping is given groups and state with every call, for the caller may replace either at any time.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from carousel.offload.book import Book, Groups, State
from carousel.offload.checks import check_gradients, clip
from carousel.offload.forecast import refuse_wear

__all__ = ["AtOnce", "Scaling", "Stepping", "apply_now", "ready", "usable"]


class Scaling:
    """What a ``GradScaler`` says of the gradients of a step.

    Args:
        found_inf: above 0 where one of them is not finite.
        grad_scale: what they are still to be divided by.

    Attributes:
        given: whether there is a scaler at all.
    """

    def __init__(self, found_inf: Tensor | None, grad_scale: Tensor | None) -> None:
        self.given = found_inf is not None or grad_scale is not None
        self.grad_scale = None if grad_scale is None else grad_scale.cpu()
        self.overflowed = found_inf is not None and bool(float(found_inf))


class Stepping(Protocol):
    """When the arithmetic of a step is done, and on which thread."""

    def step(self, groups: Groups, state: State, scaling: Scaling) -> None:
        """Take the gradients that are there.

        Raises:
            BadInputError: one cannot be used; nothing was changed.
            CarouselError: what a thread met; the last commit is intact.
        """

    def check(self) -> None:
        """Refuse to have states looked at or replaced now.

        Raises:
            BadInputError: a step is half done; nothing was changed.
            StorageError: it is going to stay so.
        """

    def settle(self, groups: Groups, state: State) -> None:
        """Bring parameters and states up to the gradients that were taken.

        Raises:
            BadInputError: see `check`.
            CarouselError: what a thread met; the last commit is intact.
        """

    def close(self) -> None:
        """Give up what is not settled; calling it again is fine."""


class AtOnce:
    """All of it within `step`.

    Args:
        book: of the optimizer.
    """

    def __init__(self, book: Book) -> None:
        self._book = book

    @torch.no_grad()
    def step(self, groups: Groups, state: State, scaling: Scaling) -> None:
        """Update the parameters that have gradients; see `Stepping`."""
        book = self._book
        book.shelf.check()
        if not ready(book, groups, state, scaling):
            return
        apply_now(book, groups, state, scaling.grad_scale)

    def check(self) -> None:
        """No step is half done when it returns."""

    def settle(self, groups: Groups, state: State) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Nothing is held."""


def ready(book: Book, groups: Groups, state: State, scaling: Scaling) -> bool:
    """Check and clip gradients, and follow what the parameters are now.

    Returns:
        Whether there is anything to update with.

    Raises:
        BadInputError: a gradient or a value cannot be used; nothing was changed.
        StorageError: the states could not be moved.
    """
    if not usable(book, groups, state, scaling):
        return False
    book.follow(groups, state)
    return True


def usable(book: Book, groups: Groups, state: State, scaling: Scaling) -> bool:
    """Check and clip gradients.

    Returns:
        Whether there is anything to update with.

    Raises:
        BadInputError: a gradient or a value cannot be used; nothing was changed.
        TierFullError: no more may be written; nothing was changed.
    """
    if scaling.overflowed or not check_gradients(groups, book.link.device):
        return False
    book.check_groups(groups)
    refuse_wear(book, groups, state)
    params = [param for group in groups for param in group["params"]]
    clip(params, book.settings.clip_norm, scaling.grad_scale)
    return True


def apply_now(book: Book, groups: Groups, state: State, grad_scale: Tensor | None) -> None:
    """Take a step with gradients that are ready, and commit it if that is due.

    Raises:
        CarouselError: what a thread met; the last commit is intact.
    """
    book.update(groups, state, grad_scale)
    book.commit_if_due(groups, state)
    book.read_ahead()
