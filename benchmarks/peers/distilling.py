"""iCaRL and BiC as plain loops: exemplars mixed into the stream, and an older self as teacher."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    log_softmax,
    normalize,
    one_hot,
)

from benchmarks.peers.learner import Learner, quotas

__all__ = ["BiCLoop", "ICaRLLoop"]


class _Distilling(Learner):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: dict[int, Tensor] = {}
        self.teacher: Module | None = None

    def with_exemplars(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        xs, ys = [x], [y]
        for label, samples in self.kept.items():
            xs.append(samples)
            ys.append(torch.full((len(samples),), label))
        return torch.cat(xs), torch.cat(ys)

    def remember(self) -> None:
        self.teacher = copy.deepcopy(self.model).eval().requires_grad_(False)


class ICaRLLoop(_Distilling):
    """Rebuffi et al. 2017, Algorithms 1 to 5, without mirror images."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head = [module for module in self.model.modules() if isinstance(module, Linear)][-1]
        self.features = torch.empty(0)
        self.head.register_forward_pre_hook(self._note)
        self.means = torch.empty(0)

    def _note(self, _: Module, inputs: tuple[Tensor, ...]) -> None:
        self.features = inputs[0]

    def learn(self, x: Tensor, y: Tensor) -> None:
        """See `Learner.learn`."""
        old = torch.tensor(self.seen, dtype=torch.int64)
        new = self.meet(y)
        every_x, every_y = self.with_exemplars(x, y)
        classes = torch.tensor(self.seen)
        for _ in range(self.options.epochs):
            for rows in self.batches(len(every_y), self.options.batch_size):
                inputs = self.transform(every_x[rows])
                output = self.model(inputs)
                targets = one_hot(every_y[rows], output.shape[1]).float()
                if self.teacher is not None:
                    targets[:, old] = torch.sigmoid(self.teacher(inputs))[:, old]
                self.step(binary_cross_entropy_with_logits(output[:, classes], targets[:, classes]))
        self.model.eval()
        share = quotas(self.seen, self.options.memory_size, self.rng)
        self.kept = {label: samples[: share[label]] for label, samples in self.kept.items()}
        for label in new:
            samples = x[y == label]
            self.kept[label] = samples[self._herd(samples, share[label])]
        self.means = torch.stack([self._features(self.kept[c]).mean(0) for c in self.seen])
        self.means = normalize(self.means)
        self.model.train()
        self.remember()

    def scores(self, x: Tensor) -> Tensor:
        """Minus the distance to the nearest mean of exemplars."""
        output = self.model(x)
        scores = torch.full_like(output, -torch.inf)
        scores[:, torch.tensor(self.seen)] = -torch.cdist(normalize(self.features), self.means)
        return scores

    @torch.no_grad()
    def _features(self, samples: Tensor) -> Tensor:
        found = []
        for rows in samples.split(256):
            self.model(self.transform(rows))
            found.append(normalize(self.features))
        return torch.cat(found)

    def _herd(self, samples: Tensor, count: int) -> list[int]:
        """The samples whose running mean stays closest to the mean of the class."""
        features = self._features(samples)
        mean = normalize(features.mean(0), dim=0)
        picked: list[int] = []
        total = torch.zeros_like(mean)
        for step in range(1, min(count, len(samples)) + 1):
            distance = (mean - (total + features) / step).norm(dim=1)
            distance[picked] = torch.inf
            best = int(distance.argmin())
            picked.append(best)
            total = total + features[best]
        return picked


class BiCLoop(_Distilling):
    """Wu et al. 2019, sections 3 to 5."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.checks: dict[int, Tensor] = {}
        self.newest: list[int] = []
        self.bias = torch.tensor([1.0, 0.0])
        self.teacher_bias: tuple[list[int], Tensor] = ([], self.bias)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """See `Learner.learn`."""
        old = list(self.seen)
        new = self.meet(y)
        x, y = self._hold_out(x, y, new)
        self._first_stage(x, y, old)
        self.newest, self.bias = new, torch.tensor([1.0, 0.0])
        if old:
            self._second_stage()
        train_slots = self.options.memory_size - sum(map(len, self.checks.values()))
        share = quotas(self.seen, train_slots, self.rng)
        for label in new:
            samples = x[y == label]
            self.kept[label] = samples[self.pick(len(samples), len(samples))]
        self.kept = {label: samples[: share[label]] for label, samples in self.kept.items()}
        self.remember()
        self.teacher_bias = (self.newest, self.bias)

    def scores(self, x: Tensor) -> Tensor:
        """The logits with those of the newest classes corrected."""
        return _corrected(self.model(x), self.newest, self.bias)

    def _hold_out(self, x: Tensor, y: Tensor, new: list[int]) -> tuple[Tensor, Tensor]:
        slots = max(len(self.seen), self.options.memory_size // 10)
        share = quotas(self.seen, slots, self.rng)
        self.checks = {label: samples[: share[label]] for label, samples in self.checks.items()}
        left = torch.ones(len(y), dtype=torch.bool)
        for label in new:
            of_class = (y == label).nonzero().squeeze(1)
            rows = of_class[self.pick(len(of_class), share[label])]
            self.checks[label] = x[rows]
            left[rows] = False
        return x[left], y[left]

    def _first_stage(self, x: Tensor, y: Tensor, old: list[int]) -> None:
        every_x, every_y = self.with_exemplars(x, y)
        weight = len(old) / len(self.seen)
        warmth = self.options.own["temperature"]
        for _ in range(self.options.epochs):
            for rows in self.batches(len(every_y), self.options.batch_size):
                inputs = self.transform(every_x[rows])
                output = self.model(inputs)
                loss = cross_entropy(output[:, self.seen], _places(every_y[rows], self.seen))
                if self.teacher is not None:
                    told = _corrected(self.teacher(inputs), *self.teacher_bias)[:, old]
                    soft = (told / warmth).softmax(1)
                    kept = -(soft * log_softmax(output[:, old] / warmth, 1)).sum(1).mean()
                    loss = weight * kept + (1 - weight) * loss
                self.step(loss)

    def _second_stage(self) -> None:
        self.model.eval()
        x = torch.cat(list(self.checks.values()))
        y = torch.cat([torch.full((len(s),), label) for label, s in self.checks.items()])
        with torch.no_grad():
            output = self.model(self.transform(x))
        bias = self.bias.clone().requires_grad_()
        solver = torch.optim.LBFGS([bias], max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            solver.zero_grad()
            scores = _corrected(output, self.newest, bias)[:, self.seen]
            value = cross_entropy(scores, _places(y, self.seen)) + 0.1 * bias[1] ** 2 / 2
            value.backward()
            return value

        solver.step(loss)
        self.bias = bias.detach()
        self.model.train()


def _corrected(output: Tensor, newest: list[int], bias: Tensor) -> Tensor:
    if not newest:
        return output
    mask = torch.zeros(output.shape[1], dtype=torch.bool)
    mask[newest] = True
    return torch.where(mask, bias[0] * output + bias[1], output)


def _places(labels: Tensor, classes: list[int]) -> Tensor:
    place = torch.zeros(max(classes) + 1, dtype=torch.int64)
    place[classes] = torch.arange(len(classes))
    return place[labels]
