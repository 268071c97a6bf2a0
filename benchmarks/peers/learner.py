"""What the plain loops have in common: options, batches, a class-balanced set, and a test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import SGD, AdamW, Optimizer

__all__ = ["Learner", "Options", "quotas"]

_TEST_ROWS = 512


@dataclass(frozen=True)
class Options:
    """Settings of a run, with the names of ``carousel train``.

    Args:
        memory_size: samples.
        batch_size: of the stream.
        batch_size_mem: rows of a replayed batch.
        epochs: passes over an experience, or over the memory.
        lr: learning rate.
        optimizer: ``"sgd"`` or ``"adamw"``.
        momentum: of sgd.
        weight_decay: of both.
        seed: of all draws.
        own: options of the method.
    """

    memory_size: int
    batch_size: int
    batch_size_mem: int
    epochs: int
    lr: float
    optimizer: str = "adamw"
    momentum: float = 0.9
    weight_decay: float = 0.0
    seed: int = 0
    own: Mapping[str, Any] = field(default_factory=dict)


class Learner(ABC):
    """Learns one experience after the other from raw samples.

    Args:
        model: gives logits (n, C).
        transform: raw samples to model input.
        options: see `Options`.
    """

    def __init__(
        self, model: Module, transform: Callable[[Tensor], Tensor], options: Options
    ) -> None:
        self.model = model
        self.transform = transform
        self.options = options
        self.rng = np.random.default_rng(options.seed)
        self.optimizer = self.make_optimizer()
        self.seen: list[int] = []

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor) -> None:
        """Train on an experience of (n, *shape) raw samples and (n,) labels."""

    def scores(self, x: Tensor) -> Tensor:
        """(n, C) of (n, *shape) model input, in evaluation mode."""
        scores: Tensor = self.model(x)
        return scores

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """Share of (n,) labels that have the highest score."""
        self.model.eval()
        right = sum(
            int((self.scores(self.transform(rows)).argmax(1) == labels).sum())
            for rows, labels in zip(x.split(_TEST_ROWS), y.split(_TEST_ROWS), strict=True)
        )
        self.model.train()
        return right / max(len(y), 1)

    def make_optimizer(self) -> Optimizer:
        """A fresh optimizer over the model."""
        options, parameters = self.options, self.model.parameters()
        if options.optimizer == "sgd":
            return SGD(parameters, options.lr, options.momentum, weight_decay=options.weight_decay)
        return AdamW(parameters, options.lr, weight_decay=options.weight_decay)

    def step(self, loss: Tensor, clip: float | None = None) -> None:
        """One step of the optimizer."""
        self.optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()

    def meet(self, y: Tensor) -> list[int]:
        """Note the classes of an experience; returns those that are new."""
        new = [label for label in y.unique().tolist() if label not in self.seen]
        self.seen += new
        return new

    def batches(self, count: int, size: int) -> Iterator[Tensor]:
        """Rows 0..count - 1 in random order, `size` at a time."""
        yield from torch.from_numpy(self.rng.permutation(count)).split(size)

    def pick(self, count: int, most: int) -> Tensor:
        """min(count, most) of the rows 0..count - 1, without repeats."""
        rows: npt.NDArray[np.int64] = self.rng.choice(count, min(count, most), replace=False)
        return torch.from_numpy(rows)

    def balanced(self, y: Tensor, slots: int) -> Tensor:
        """Rows of a class-balanced random choice of at most `slots` samples of the classes seen."""
        chosen = []
        for label, quota in quotas(self.seen, slots, self.rng).items():
            of_class = (y == label).nonzero().squeeze(1)
            chosen.append(of_class[self.pick(len(of_class), quota)])
        return torch.cat(chosen)


def quotas(classes: list[int], slots: int, rng: np.random.Generator) -> dict[int, int]:
    """Slots of each class; what does not divide goes to random classes."""
    share, rest = divmod(slots, len(classes))
    more = set(rng.choice(classes, rest, replace=False).tolist())
    return {label: share + (label in more) for label in classes}
