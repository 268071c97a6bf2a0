"""Bias correction: two numbers that make new classes comparable with old ones.

Trained on many samples of the new classes and few of the old, the last layer prefers the new
ones. BiC (Wu et al., "Large Scale Incremental Learning", CVPR 2019, section 4.2) corrects their
logits by one straight line, learned on a balanced validation set while the network stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

from carousel.errors import BadInputError

__all__ = ["BiasCorrected", "BiasFit", "BiasOptimizer", "Line", "correct"]

BiasOptimizer: TypeAlias = Literal["sgd", "adam"]

_UNSEEN = -1000.0
"""Logit of an output that no class has had yet; growing heads of Avalanche give the same."""


@dataclass(frozen=True)
class Line:
    """A corrected logit is ``alpha * logit + beta``; what leaves a logit alone is (1, 0)."""

    alpha: float = 1.0
    beta: float = 0.0


def correct(logits: Tensor, classes: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Correct some classes' logits and leave the others alone (equation 4 of the paper).

    Args:
        logits: (n, C).
        classes: (k,) int64 columns to correct.
        alpha: () slope.
        beta: () offset.

    Returns:
        (n, C), differentiable in all but `classes`.

    Example:
        >>> logits = torch.tensor([[1.0, 2.0, 3.0]])
        >>> two, one = torch.tensor(2.0), torch.tensor(1.0)
        >>> correct(logits, torch.tensor([1]), two, one).tolist()
        [[1.0, 5.0, 3.0]]
    """
    return torch.where(_among(classes, logits), alpha * logits + beta, logits)


class BiasCorrected(Module):
    """A network, and the correction of the classes that it learned last.

    In training mode it gives the logits of the network, in evaluation mode corrected ones. Outputs
    of classes that were never seen are at -1000 in both, so that they take no part in a softmax
    and never win; before the first class they are as the network gives them.

    Args:
        net: gives logits (n, C); a head that grows is fine.

    Attributes:
        net: the network, whose parameters are the only ones.
        seen: (s,) int64 classes seen so far.
        newest: (k,) int64 classes that the correction is for.
        alpha: () slope of the correction.
        beta: () offset of the correction.

    Example:
        >>> model = BiasCorrected(torch.nn.Identity())
        >>> model.begin(torch.tensor([0, 1]))
        >>> model.begin(torch.tensor([2]))
        >>> model.apply_line(Line(alpha=0.5, beta=-1.0))
        >>> model.eval()(torch.tensor([[1.0, 2.0, 8.0, 9.0]])).tolist()
        [[1.0, 2.0, 3.0, -1000.0]]
    """

    seen: Tensor
    newest: Tensor
    alpha: Tensor
    beta: Tensor

    def __init__(self, net: Module) -> None:
        super().__init__()
        self.net = net
        nothing = torch.zeros(0, dtype=torch.int64)
        self.register_buffer("seen", nothing)
        self.register_buffer("newest", nothing.clone())
        self.register_buffer("alpha", torch.ones(()))
        self.register_buffer("beta", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, C) of a batch."""
        logits: Tensor = self.net(x)
        if 0 < len(self.seen) < logits.shape[1]:
            logits = logits.masked_fill(~_among(self.seen, logits), _UNSEEN)
        if self.training or len(self.newest) == 0:
            return logits
        return correct(logits, self.newest, self.alpha, self.beta)

    def begin(self, new: Tensor) -> None:
        """Start to learn (k,) classes not seen before: the correction so far is over."""
        new = new.to(self.seen.device)
        self.seen = torch.cat((self.seen, new))
        self.newest = new.clone()
        self.apply_line(Line())

    def apply_line(self, line: Line) -> None:
        """Correct the newest classes by this from now on."""
        self.alpha.fill_(line.alpha)
        self.beta.fill_(line.beta)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        # the class lists are as long as they were when they were saved
        for name in ("seen", "newest"):
            if (saved := state.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_zeros(saved.shape))
        super()._load_from_state_dict(state, prefix, *rest)


@dataclass(frozen=True, kw_only=True)
class BiasFit:
    """How the correction is learned (equation 5 of the paper).

    Cross-entropy over all classes, plus ``l2 / 2 * beta ** 2``, which keeps the offset small; the
    problem is convex in both numbers. A step takes all validation samples, which are few: what a
    mini-batch leaves over, such as two samples, would throw the line far off.

    Args:
        optimizer: ``"sgd"`` (momentum 0.9) or ``"adam"``.
        lr: its learning rate.
        l2: weight of the penalty on beta.

    Raises:
        BadInputError: a value is out of range.

    Example:
        >>> logits = torch.tensor([[2.0, 3.0], [0.0, 3.0]])  # the new class, 1, is too strong
        >>> line = BiasFit()(logits, torch.tensor([0, 1]), torch.tensor([1]), epochs=50)
        >>> line.alpha < 1
        True
    """

    optimizer: BiasOptimizer = "sgd"
    lr: float = 0.1
    l2: float = 0.1

    def __post_init__(self) -> None:
        """Check the values."""
        if self.optimizer not in _OPTIMIZERS:
            raise BadInputError(f"bias_optimizer is {self.optimizer!r}", fix='use "sgd" or "adam"')
        if not 0 < self.lr < float("inf"):
            raise BadInputError(f"bias_lr is {self.lr}", fix="give a number above 0")
        if not 0 <= self.l2 < float("inf"):
            raise BadInputError(f"bias_l2 is {self.l2}", fix="give a number of at least 0")

    def __call__(self, logits: Tensor, labels: Tensor, new: Tensor, *, epochs: int) -> Line:
        """The line that makes the new classes' logits right.

        Args:
            logits: (n, C) of the validation samples; not corrected.
            labels: (n,) int64 their classes.
            new: (k,) int64 classes to correct.
            epochs: passes over the samples.
        """
        alpha = torch.ones((), device=logits.device, requires_grad=True)
        beta = torch.zeros((), device=logits.device, requires_grad=True)
        optimizer = _OPTIMIZERS[self.optimizer]([alpha, beta], self.lr)
        for _ in range(epochs):
            loss = cross_entropy(correct(logits, new, alpha, beta), labels) + self.l2 / 2 * beta**2
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return Line(alpha.item(), beta.item())


_OPTIMIZERS: dict[str, Callable[[list[Tensor], float], Optimizer]] = {
    "sgd": lambda parameters, lr: SGD(parameters, lr, momentum=0.9),
    "adam": Adam,
}


def _among(classes: Tensor, logits: Tensor) -> Tensor:
    """(C,) bool, true at these classes."""
    mask = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    return mask.index_fill_(0, classes, True)
