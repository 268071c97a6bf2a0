"""ER, TinyER and DER++ as plain loops: a batch of the stream beside batches of a buffer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from benchmarks.peers.learner import Learner

__all__ = ["DERLoop", "ERLoop", "TinyERLoop"]


class ERLoop(Learner):
    """Chaudhry et al. 2019 with a class-balanced memory that changes between experiences."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.x = self.y = torch.empty(0)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """See `Learner.learn`."""
        options = self.options
        for _ in range(options.epochs):
            for rows in self.batches(len(y), options.batch_size):
                inputs, labels = x[rows], y[rows]
                if len(self.y):
                    replayed = self.pick(len(self.y), options.batch_size_mem)
                    inputs = torch.cat((inputs, self.x[replayed]))
                    labels = torch.cat((labels, self.y[replayed]))
                self.step(cross_entropy(self.model(self.transform(inputs)), labels))
        self.meet(y)
        self.x, self.y = (torch.cat((self.x, x)), torch.cat((self.y, y))) if len(self.y) else (x, y)
        kept = self.balanced(self.y, options.memory_size)
        self.x, self.y = self.x[kept], self.y[kept]


class _Reservoir(Learner):
    """Vitter's algorithm R; `fields` are rows of equal length, filled as samples come."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fields: list[Tensor] = []
        self.filled = self.met = 0

    def offer(self, *fields: Tensor) -> None:
        """Offer a batch, row by row."""
        slots = self.options.memory_size
        if not self.fields:
            self.fields = [field.new_zeros((slots, *field.shape[1:])) for field in fields]
        for row in range(len(fields[0])):
            place = self.met if self.met < slots else int(self.rng.integers(self.met + 1))
            self.met += 1
            self.filled = min(self.met, slots)
            if place < slots:
                for buffer, field in zip(self.fields, fields, strict=True):
                    buffer[place] = field[row]


class TinyERLoop(_Reservoir):
    """Chaudhry et al. 2019, Algorithm 1: one pass, a reservoir that changes every step."""

    def learn(self, x: Tensor, y: Tensor) -> None:
        """See `Learner.learn`."""
        options = self.options
        for _ in range(options.epochs):
            for rows in self.batches(len(y), options.batch_size):
                inputs, labels = x[rows], y[rows]
                if self.filled:
                    replayed = self.pick(self.filled, options.batch_size_mem)
                    inputs = torch.cat((inputs, self.fields[0][replayed]))
                    labels = torch.cat((labels, self.fields[1][replayed]))
                self.step(cross_entropy(self.model(self.transform(inputs)), labels))
                self.offer(x[rows], y[rows])


class DERLoop(_Reservoir):
    """Buzzega et al. 2020, Algorithm 2; three forward passes, logits kept as of the insertion."""

    def learn(self, x: Tensor, y: Tensor) -> None:
        """See `Learner.learn`."""
        options, own = self.options, self.options.own
        for _ in range(options.epochs):
            for rows in self.batches(len(y), options.batch_size):
                output = self.model(self.transform(x[rows]))
                loss = cross_entropy(output, y[rows])
                if self.filled:
                    one = self.pick(self.filled, options.batch_size_mem)
                    two = self.pick(self.filled, options.batch_size_mem)
                    kept_x, kept_y, kept_logits = self.fields
                    first = self.model(self.transform(kept_x[one]))
                    loss = loss + own["alpha"] * mse_loss(first, kept_logits[one])
                    second = self.model(self.transform(kept_x[two]))
                    loss = loss + own["beta"] * cross_entropy(second, kept_y[two])
                self.step(loss)
                self.offer(x[rows], y[rows], output.detach())
