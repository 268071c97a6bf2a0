"""A learning rate that falls at given epochs of every experience."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from avalanche.training.plugins import SupervisedPlugin

from carousel.errors import BadInputError

__all__ = ["StepSchedule"]


class StepSchedule(SupervisedPlugin):
    """Multiplies the learning rate by `gamma` after the epochs in `milestones`.

    Every experience starts at the optimizer's own rate again. Put it before `RunCheckpoint`, which
    saves how far it is: a resumed run goes on at the rate it had.

    Args:
        milestones: epochs of an experience after which the rate falls, ascending.
        gamma: factor of each fall.

    Raises:
        BadInputError: the epochs do not ascend from 1 on, or the factor is not above 0.

    Example:
        >>> import torch
        >>> from avalanche.training.supervised import Naive
        >>> from carousel.models import make_model
        >>> model = make_model("mlp", (1, 8, 8), 10, seed=0)
        >>> naive = Naive(
        ...     model=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), 2.0),
        ...     train_epochs=70,
        ...     plugins=[StepSchedule((49, 63), 0.2)],
        ...     evaluator=None,
        ... )
    """

    leaves_loss = True
    """It does not look at ``strategy.loss``; see `LeanTemplate`."""

    def __init__(self, milestones: Sequence[int], gamma: float) -> None:
        super().__init__()
        _check(milestones, gamma)
        self.milestones = tuple(milestones)
        self.gamma = gamma
        self._epoch: int | None = None
        self._resumed = False

    def before_training(self, *_: Any, **__: Any) -> None:
        """An experience that broke off is not gone on with."""
        if not self._resumed:
            self._epoch = None

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Start at the full rate, unless the run goes on within the experience."""
        if not self._resumed:
            self._epoch = 0
        self._resumed = False
        self._set_rate(strategy.optimizer, self._epoch or 0)

    def after_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Fall, if this epoch is a milestone."""
        self._epoch = (self._epoch or 0) + 1
        self._set_rate(strategy.optimizer, self._epoch)

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Leave the optimizer with its own rate."""
        self._epoch = None
        self._set_rate(strategy.optimizer, 0)

    def state_dict(self) -> dict[str, Any]:
        """Epochs of the experience that are done; None between experiences."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        self._epoch = state["epoch"]
        self._resumed = self._epoch is not None

    def _set_rate(self, optimizer: Any, epoch: int) -> None:
        falls = bisect_right(self.milestones, epoch)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
            group["lr"] = group["initial_lr"] * self.gamma**falls


def _check(milestones: Sequence[int], gamma: float) -> None:
    if list(milestones) != sorted(set(milestones)) or min(milestones, default=1) < 1:
        listed = ",".join(map(str, milestones))
        raise BadInputError(
            f"lr_milestones is {listed}", fix="list epochs from 1 on, ascending, each once"
        )
    if not gamma > 0:
        raise BadInputError(f"lr_gamma is {gamma}", fix="give a factor above 0, such as 0.1")
