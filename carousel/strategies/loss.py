"""The losses of experience replay."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor
from torch.nn import CrossEntropyLoss
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from carousel.errors import BadInputError

__all__ = ["Loss", "LossName", "SeenClassesBCE", "make_loss"]

LossName: TypeAlias = Literal["ce", "bce"]


class SeenClassesBCE(SupervisedPlugin):
    """Sigmoid cross-entropy against one-hot targets, mean over batch and classes seen so far.

    The classification loss of iCaRL (Rebuffi et al., 2017), without distillation. Outputs of
    classes that no experience has had take no part. It is a plugin as well, and learns the
    classes of each experience before the training on it: give it as ``criterion=``.

    Example:
        >>> loss = SeenClassesBCE()
        >>> loss.see(torch.tensor([0, 1]))
        >>> round(loss(torch.zeros(1, 10), torch.tensor([1])).item(), 4)
        0.6931
    """

    def __init__(self) -> None:
        super().__init__()
        self.classes = torch.zeros(0, dtype=torch.int64)

    def see(self, labels: Tensor) -> None:
        """Add classes."""
        self.classes = torch.unique(torch.cat((self.classes, labels)))

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Add the classes of the experience."""
        self.see(torch.tensor([int(y) for y in strategy.experience.dataset.targets]))

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of (n, C) logits against (n,) labels."""
        classes = self.classes.to(logits.device)
        targets = one_hot(labels, logits.shape[1])[:, classes].to(logits.dtype)
        return binary_cross_entropy_with_logits(logits[:, classes], targets)

    def state_dict(self) -> dict[str, Tensor]:
        """The classes seen."""
        return {"classes": self.classes}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put the classes seen back."""
        self.classes = state["classes"]


Loss: TypeAlias = CrossEntropyLoss | SeenClassesBCE


def make_loss(name: LossName) -> Loss:
    """The loss of this name: ``"ce"`` is the softmax cross-entropy, ``"bce"`` `SeenClassesBCE`.

    Raises:
        BadInputError: there is no such loss.
    """
    if name == "ce":
        return CrossEntropyLoss()
    if name == "bce":
        return SeenClassesBCE()
    raise BadInputError(f"loss is {name!r}", fix='use "ce" or "bce"')
