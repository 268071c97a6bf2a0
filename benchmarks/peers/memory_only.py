"""GDumb and Rainbow Memory as plain loops: what is kept is what is trained on."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from benchmarks.peers.learner import Learner, quotas

__all__ = ["GDumbLoop", "RainbowLoop"]

_COPIES = 12


class _MemoryOnly(Learner):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.x = self.y = torch.empty(0)
        self.start = copy.deepcopy(self.model.state_dict())

    def train_on_memory(self, epochs: int, first: int) -> None:
        """Epochs `first`.. of a schedule of warm restarts after one warm-up epoch."""
        own = self.options.own
        for epoch in range(first, first + epochs):
            self._set_rate(epoch)
            for rows in self.batches(len(self.y), self.options.batch_size):
                self.step(self._loss(self.x[rows], self.y[rows]), own.get("clip"))

    def _set_rate(self, epoch: int) -> None:
        high, low = self.options.lr, 0.01 * self.options.lr
        if epoch == 0:
            rate = 0.1 * high
        else:
            period, place = 1, epoch - 1
            while place >= period:
                place -= period
                period *= 2
            rate = low + (high - low) * (1 + math.cos(math.pi * place / period)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _loss(self, raw: Tensor, y: Tensor) -> Tensor:
        x, own = self.transform(raw), self.options.own
        if self.rng.random() >= own["cutmix_p"]:
            return cross_entropy(self.model(x), y)
        height, width = x.shape[-2:]
        share = math.sqrt(1 - self.rng.beta(own["cutmix_alpha"], own["cutmix_alpha"]))
        middle = self.rng.integers(height), self.rng.integers(width)
        half = int(height * share) // 2, int(width * share) // 2
        top, bottom = max(middle[0] - half[0], 0), min(middle[0] + half[0], height)
        left, right = max(middle[1] - half[1], 0), min(middle[1] + half[1], width)
        other = torch.from_numpy(self.rng.permutation(len(y)))
        x[:, :, top:bottom, left:right] = x[other, :, top:bottom, left:right]
        kept = 1 - (bottom - top) * (right - left) / (height * width)
        output = self.model(x)
        return kept * cross_entropy(output, y) + (1 - kept) * cross_entropy(output, y[other])


class GDumbLoop(_MemoryOnly):
    """Prabhu et al. 2020, Algorithms 1 and 2."""

    def learn(self, x: Tensor, y: Tensor) -> None:
        """See `Learner.learn`."""
        if not len(self.y):
            self.x = x.new_zeros((self.options.memory_size, *x.shape[1:]))
            self.places: list[int] = []
        for row in self.rng.permutation(len(y)).tolist():
            self._greedy(x[row], int(y[row]))
        kept = self.x, self.y
        self.x, self.y = self.x[: len(self.places)], torch.tensor(self.places)
        self.model.load_state_dict(self.start)
        self.optimizer = self.make_optimizer()
        self.train_on_memory(self.options.epochs, 0)
        self.x = kept[0]

    def _greedy(self, sample: Tensor, label: int) -> None:
        counts = Counter(self.places)
        slots = self.options.memory_size
        if label in counts and counts[label] >= slots // len(counts):
            return
        if len(self.places) < slots:
            self.places.append(label)
            place = len(self.places) - 1
        else:
            most = max(counts.values())
            largest = self.rng.choice([c for c, n in counts.items() if n == most])
            of_class = [place for place, c in enumerate(self.places) if c == largest]
            place = int(self.rng.choice(of_class))
            self.places[place] = label
        self.x[place] = sample


class RainbowLoop(_MemoryOnly):
    """Bang et al. 2021, Algorithm 1 and section 4.1; perturbed by shift, contrast, noise."""

    def learn(self, x: Tensor, y: Tensor) -> None:
        """See `Learner.learn`."""
        options = self.options
        self.optimizer = self.make_optimizer()
        self._set_rate(0)
        for rows in self.batches(len(y), options.batch_size):
            inputs, labels = x[rows], y[rows]
            if len(self.y):
                replayed = self.pick(len(self.y), options.batch_size_mem)
                inputs = torch.cat((inputs, self.x[replayed]))
                labels = torch.cat((labels, self.y[replayed]))
            self.step(self._loss(inputs, labels))
        first = not self.seen
        self.meet(y)
        every_x = x if first else torch.cat((self.x, x))
        every_y = y if first else torch.cat((self.y, y))
        chosen = (
            self.balanced(every_y, options.memory_size)
            if first
            else self._diverse(every_x, every_y)
        )
        self.x, self.y = every_x[chosen], every_y[chosen]
        self.train_on_memory(options.epochs - 1, 1)

    @torch.no_grad()
    def _diverse(self, x: Tensor, y: Tensor) -> Tensor:
        self.model.eval()
        votes = torch.zeros(len(y), int(self.model(self.transform(x[:2])).shape[1]))
        for _ in range(_COPIES):
            for rows in torch.arange(len(y)).split(512):
                guess = self.model(self._perturbed(self.transform(x[rows]))).argmax(1)
                votes[rows, guess] += 1
        self.model.train()
        uncertainty = 1 - votes.max(1).values / _COPIES
        chosen = []
        for label, quota in quotas(self.seen, self.options.memory_size, self.rng).items():
            of_class = (y == label).nonzero().squeeze(1)
            ranked = of_class[uncertainty[of_class].argsort(stable=True)]
            stride = max(1, len(ranked) // quota)
            chosen.append(ranked[::stride][:quota])
        return torch.cat(chosen)

    def _perturbed(self, x: Tensor) -> Tensor:
        size = x.shape[-1]
        top, left = self.rng.integers(0, 7, 2)
        moved = pad(x, (3, 3, 3, 3), mode="replicate")[..., top : top + size, left : left + size]
        middle = moved.mean((1, 2, 3), keepdim=True)
        contrast = float(self.rng.uniform(0.5, 1.5))
        noise = torch.from_numpy(self.rng.normal(0, 0.05, moved.shape)).to(moved.dtype)
        return (middle + contrast * (moved - middle) + noise).clamp(0, 1)
