"""Dark Experience Replay (DER++): replay samples together with the logits they once had.

After Buzzega et al., "Dark Experience for General Continual Learning: a Strong, Simple Baseline",
NeurIPS 2020, with the memory of Lee et al., "CarM", DAC 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from avalanche.models.utils import is_multi_task_module
from torch import Tensor
from torch.nn import CrossEntropyLoss, Module
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from carousel.errors import BadInputError
from carousel.memory import Carousel, Replay
from carousel.strategies.batch import evaluation_transform
from carousel.strategies.dark import fill_values, logit_mse, stored_logits
from carousel.strategies.dark_update import (
    LOGIT_RULES,
    ByBatchWithLogits,
    LogitRule,
    check_logit_schema,
)
from carousel.strategies.distill import DistillWeight, Factors, parse_distill_weight, weights
from carousel.strategies.facts import StreamFacts
from carousel.strategies.lean import LeanTemplate
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.rules import Rules
from carousel.strategies.uncertainty import evaluating

__all__ = ["DERPlusPlus"]


class DERPlusPlus(LeanTemplate):
    """DER++ with a carousel.

    The loss of a step is ``CE(f(x), y) + alpha * MSE(f(x'), z') + beta * CE(f(x''), y'')``: x is
    the batch of the stream, x' and x'' are two independent batches of the memory, z' the logits
    that were stored with x' (Buzzega et al., 2020, equation 6). Each batch has a forward pass of
    its own, so that batch normalisation sees them apart. Samples enter a reservoir after the step
    in which they are first met, with the logits that the training-mode forward of that step gave
    for the augmented sample.

    Sample and logits are one record with the fields ``x``, ``logits`` (W,) float32 and ``width``
    int32, the number of outputs that the model had; they are stored, replayed and swapped
    together. Deviations: the reservoir counts distinct samples (the paper's offers each again in
    every epoch, which changes the odds of logits, not of samples); a growing head is compared in
    the outputs it had when the logits were taken.

    Args:
        model: what to train; a growing head of Avalanche is fine.
        optimizer: over the model's parameters.
        memory: the replay memory; open rules become a reservoir that is updated every batch, and
            two draws a step.
        alpha: weight of the logits, at least 0.
        beta: weight of the labels of replayed samples, at least 0.
        logits: which logits a record keeps. ``"first"``: those of the first presentation, as in
            the CarM paper's system. ``"latest"``: every later presentation within the experience
            revises record and slot. ``"refresh"``: at the end of an experience those of some of
            its samples are computed anew, in evaluation mode and with the experience's evaluation
            transforms: training mode would change the statistics of batch normalisation.
        refresh_per_class: how many stored samples of each of its classes ``"refresh"`` takes.
        n_classes: logits a record has room for, at least the outputs the model will ever have; by
            default those it has at the first step, and at least the classes of the stream.
        distill_weight: ``"original"``: alpha and beta as above. A number a: ``a * MSE + (1 - a) *
            CE`` in place of the two terms. ``"incremental"``: a is the share of old classes.
        train_mb_size: samples of the stream a step, and of each of the two batches of the memory
            unless `memory` says otherwise.
        train_epochs: passes over an experience.
        eval_mb_size: samples a step of the evaluation; by default `train_mb_size`.
        device: where the model is trained.
        plugins: further plugins, called after the memory.
        evaluator: of Avalanche; none by default.
        eval_every: see Avalanche.

    Raises:
        BadInputError: a value is out of range, or the memory has rules that do not fit.
        SchemaMismatchError: the storage holds samples without logits.

    Example:
        >>> from carousel.models import make_model
        >>> from carousel.storage import MemoryTier
        >>> model = make_model("mlp", (1, 8, 8), 10, seed=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.03)
        >>> with CarMPlugin(100, MemoryTier()) as memory:
        ...     der = DERPlusPlus(model=model, optimizer=optimizer, memory=memory)
        ...     der.memory.rules.admission, der.memory.rules.draws
        ('reservoir', 2)
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        memory: CarMPlugin,
        alpha: float = 0.2,
        beta: float = 0.5,
        logits: LogitRule = "first",
        refresh_per_class: int = 256,
        n_classes: int | None = None,
        distill_weight: DistillWeight = "original",
        train_mb_size: int = 32,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] = (),
        evaluator: Any = None,
        eval_every: int = -1,
    ) -> None:
        """See the class."""
        _check(alpha, beta, logits, refresh_per_class, n_classes)
        self.alpha = alpha
        self.beta = beta
        self.distill_weight = parse_distill_weight(distill_weight)
        self._logit_rule = logits
        self._per_class = refresh_per_class
        self._n_classes = n_classes
        self._seed = memory.seed
        if memory.carousel.schema is not None:
            check_logit_schema(memory.carousel.schema, n_classes)
        memory.suit(
            Rules(
                update=self._update_of,
                replay="concat",
                admission="reservoir",
                draws=2,
                only=("update", "replay"),
            ),
            method="DER++",
            strategy=self,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=CrossEntropyLoss(),
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[memory, *plugins],
            evaluator=evaluator,
            eval_every=eval_every,
        )
        self.memory = memory
        self._old_classes = torch.zeros(0, dtype=torch.int64)
        self._factors = Factors(alpha, beta)

    def sample_fields(self, facts: StreamFacts) -> dict[str, Tensor]:
        """A sample, its logits, and how many of them the model had."""
        width = self._n_classes or facts.n_classes
        return {**super().sample_fields(facts), **stored_logits(torch.empty(0, width), width)}

    def check_stream(self, facts: StreamFacts) -> None:
        """Records have room for the classes of the whole stream, as far as they are known.

        Raises:
            BadInputError: `n_classes` is less than that.
        """
        if self._n_classes is not None and self._n_classes < facts.n_classes:
            raise BadInputError(
                f"the stream has {facts.n_classes} classes, and a record has room for "
                f"{self._n_classes} logits",
                fix="give n_classes=, the classes of the whole stream",
            )
        self._records.classes = facts.n_classes

    def forward(self) -> Tensor:
        """Logits of the mini-batch; each batch of the memory has a forward pass of its own."""
        if not self.is_training:
            return self._logits(slice(None))
        outputs = [self._logits(slice(self.memory.stream_rows))]
        self._records.check_outputs(outputs[0].shape[1])
        outputs += [self._logits(rows) for _, rows in self.memory.parts]
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def criterion(self) -> Tensor:
        """The loss of the class's documentation; without replayed rows the first term alone."""
        if not self.is_training or not self.memory.parts:
            return self._cross_entropy(slice(None))
        with_logits, (_, with_labels) = self.memory.parts
        return (
            self._cross_entropy(slice(self.memory.stream_rows))
            + self._factors.distill * self._distance(*with_logits)
            + self._factors.hard * self._cross_entropy(with_labels)
        )

    def state_dict(self) -> dict[str, Any]:
        """The classes met before the experience at hand, for a checkpoint."""
        return {"old_classes": self._old_classes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._old_classes = state["old_classes"]

    def _before_training_exp(self, **kwargs: Any) -> None:
        super()._before_training_exp(**kwargs)
        self._factors = self._factors_now()
        self._unused = fill_values(self.model)

    def _after_training_exp(self, **kwargs: Any) -> None:
        self._old_classes = self._all_classes()
        super()._after_training_exp(**kwargs)

    def _logits(self, rows: slice) -> Tensor:
        tasks = self.mb_task_id[rows] if is_multi_task_module(self.model) else None
        return self._output(self.mb_x[rows], tasks)

    def _output(self, x: Tensor, tasks: Tensor | None) -> Tensor:
        told = (tasks,) if is_multi_task_module(self.model) else ()
        logits: Tensor = self.model(x, *told)
        return logits

    def _cross_entropy(self, rows: slice) -> Tensor:
        loss: Tensor = cross_entropy(self.mb_output[rows], self.mb_y[rows])
        return loss

    def _distance(self, replay: Replay, rows: slice) -> Tensor:
        stored, width = replay.fields["logits"], replay.fields["width"]
        return logit_mse(self.mb_output[rows], stored, width, unused=self._unused)

    def _all_classes(self) -> Tensor:
        classes: Tensor = torch.unique(torch.cat((self._old_classes, self.memory.source.labels)))
        return classes

    def _factors_now(self) -> Factors:
        total = len(self._all_classes())
        # stored logits teach from the first experience on, so a fixed share needs no old class
        old = len(self._old_classes) if self.distill_weight == "incremental" else total
        return weights(self.distill_weight, old, total) or Factors(self.alpha, self.beta)

    def _update_of(self, carousel: Carousel) -> ByBatchWithLogits:
        self._records = ByBatchWithLogits(
            carousel,
            lambda: self.mb_output[: self.memory.stream_rows],
            width=self._n_classes,
            rule=self._logit_rule,
            recompute=self._logits_now,
            per_class=self._per_class,
            seed=self._seed,
        )
        return self._records

    @torch.no_grad()
    def _logits_now(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Logits (n, C) of raw samples in evaluation mode, for ``logits="refresh"``."""
        transform = evaluation_transform(
            self.experience.dataset, self.memory.source, self.memory.transform
        )
        x, tasks = x.to(self.device), tasks.to(self.device)
        with evaluating(self.model):
            return self._output(x if transform is None else transform(x), tasks)


def _check(alpha: float, beta: float, logits: str, per_class: int, n_classes: int | None) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0 <= value < math.inf:
            raise BadInputError(f"{name} is {value}", fix="give a number of at least 0")
    if logits not in LOGIT_RULES:
        raise BadInputError(f"logits is {logits!r}", fix=f"use one of {', '.join(LOGIT_RULES)}")
    if per_class < 1:
        raise BadInputError(f"refresh_per_class is {per_class}", fix="give at least 1")
    if n_classes is not None and n_classes < 1:
        raise BadInputError(f"n_classes is {n_classes}", fix="give at least 1, or None")
