"""Experience replay (ER): train on the stream and on a memory of the past at the same time.

The paper's ER follows the iCaRL recipe without distillation: a class-balanced memory, filled at
the end of an experience, is shuffled into the stream, and the loss is the sigmoid cross-entropy
against one-hot targets over the classes seen so far (Lee et al., "CarM", DAC 2022). The other
usual ER is a softmax cross-entropy over a batch of the stream beside a batch of the memory
(Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from carousel.strategies.lean import LeanTemplate
from carousel.strategies.loss import LossName, make_loss
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.rules import Rules, require_stream

__all__ = ["ER"]


class ER(LeanTemplate):
    """Experience replay with a carousel.

    Args:
        model: what to train; a growing head of Avalanche is fine.
        optimizer: over the model's parameters.
        memory: the replay memory. The paper's ER is ``CarMPlugin(..., replay="mixed")`` with
            ``loss="bce"``; ``admission="reservoir"`` with ``update="batch"`` fills the memory as
            Chaudhry et al. do.
        loss: ``"ce"`` (softmax) or ``"bce"`` (sigmoid, over the classes seen so far).
        train_mb_size: samples of the stream a step; with ``replay="mixed"`` samples in all.
        train_epochs: passes over an experience.
        eval_mb_size: samples a step of the evaluation; by default `train_mb_size`.
        device: where the model is trained.
        plugins: further plugins, called after the memory.
        evaluator: of Avalanche; none by default.
        eval_every: see Avalanche.

    Raises:
        BadInputError: there is no such loss.

    Example:
        >>> from carousel.models import make_model
        >>> from carousel.storage import MemoryTier
        >>> model = make_model("mlp", (1, 8, 8), 10, seed=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> with CarMPlugin(100, MemoryTier(), replay="mixed") as memory:
        ...     er = ER(model=model, optimizer=optimizer, memory=memory, loss="bce")
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        memory: CarMPlugin,
        loss: LossName = "ce",
        train_mb_size: int = 32,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] = (),
        evaluator: Any = None,
        eval_every: int = -1,
    ) -> None:
        """See the class."""
        memory.suit(Rules(), method="ER", strategy=self)
        require_stream(memory.rules, "ER")
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=make_loss(loss),
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[memory, *plugins],
            evaluator=evaluator,
            eval_every=eval_every,
        )
        self.memory = memory
