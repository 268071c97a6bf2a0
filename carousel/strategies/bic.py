"""BiC: distil while learning, then correct the bias towards what was learned last.

After Wu et al., "Large Scale Incremental Learning", CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.models.utils import is_multi_task_module
from torch import Tensor
from torch.nn import CrossEntropyLoss, Module
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from carousel.errors import BadInputError
from carousel.memory.seeds import generator
from carousel.strategies.batch import evaluation_transform
from carousel.strategies.bias import BiasCorrected, BiasFit, BiasOptimizer
from carousel.strategies.distill import DistillWeight, Factors, parse_distill_weight, weights
from carousel.strategies.facts import StreamFacts
from carousel.strategies.held_out import HeldOut, parse_share, samples_a_class
from carousel.strategies.lean import LeanTemplate
from carousel.strategies.place import place_of
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.raw import RawSource
from carousel.strategies.rules import Rules, require_stream
from carousel.strategies.teacher import Teacher
from carousel.strategies.uncertainty import evaluating

__all__ = ["BiC", "distillation"]

_LEAST_BIAS_EPOCHS = 200
"""Fewer leave momentum's first overshoot in the two numbers, and cost little less."""


def distillation(student: Tensor, teacher: Tensor, old: Tensor, temperature: float) -> Tensor:
    """How far a model is from what it was, over the classes known then (equation 2 of the paper).

    The cross-entropy between softmax(teacher / T) and softmax(student / T), each over the old
    classes of a sample, mean over the samples; there is no factor T ** 2.

    Args:
        student: (n, C) logits.
        teacher: (n, C') logits, corrected; C' may be smaller than C.
        old: (k,) int64 columns of the old classes.
        temperature: T, above 0; more listens to smaller logits.

    Returns:
        () loss, differentiable in `student`.

    Example:
        >>> logits = torch.zeros(1, 3)
        >>> round(distillation(logits, logits, torch.tensor([0, 1]), 2.0).item(), 4)  # log 2
        0.6931
    """
    targets = (teacher.index_select(1, old) / temperature).softmax(1)
    return cross_entropy(student.index_select(1, old) / temperature, targets)


class BiC(LeanTemplate):
    """BiC with a carousel.

    Stage 1 trains on stream and memory shuffled together, on the loss
    ``w * distillation + (1 - w) * cross-entropy``, where w is the share of old classes. Stage 2,
    at the end of each experience with new classes but the first, freezes the network and learns a
    line that corrects the logits of the new classes on balanced, held-out samples. Each correction
    holds until the next experience begins, whose model is distilled from the corrected one.

    Deviations from the paper: held-out samples of all classes, new ones included, count as part of
    the memory; old classes are kept at random, not by herding. See ``docs/methods/bic.md``.

    Args:
        model: gives logits (n, C) of all classes; a growing head of Avalanche is fine.
        optimizer: over the model's parameters.
        memory: the replay memory, by default with ``replay="mixed"``.
        temperature: of both softmaxes of the distillation.
        distill_weight: w: ``"original"`` and ``"incremental"`` both mean the share of old
            classes, a number from 0 to 1 is used as it is.
        validation: share of the memory that is held out for stage 2; at least a sample a class.
        bias_epochs: passes of stage 2; by default as many as stage 1, but at least 200.
        bias_lr: learning rate of stage 2.
        bias_optimizer: ``"sgd"`` (momentum 0.9) or ``"adam"``.
        bias_l2: weight of the penalty on the offset of the correction.
        train_mb_size: samples a step, of stream and memory together.
        train_epochs: passes over an experience.
        eval_mb_size: samples a step of the evaluation; by default `train_mb_size`.
        device: where the model is trained.
        plugins: further plugins, called after the memory.
        evaluator: of Avalanche; none by default.
        eval_every: see Avalanche.

    Attributes:
        model: a `BiasCorrected` around the module that was given, which is ``model.net``.
        held_out: the validation samples.

    Raises:
        BadInputError: a value is out of range, or the memory was told other rules.

    Example:
        >>> from carousel.models import make_model
        >>> from carousel.storage import MemoryTier
        >>> model = make_model("mlp", (1, 8, 8), 10, seed=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> with CarMPlugin(100, MemoryTier()) as memory:
        ...     bic = BiC(model=model, optimizer=optimizer, memory=memory, train_epochs=5)
    """

    model: BiasCorrected

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        memory: CarMPlugin,
        temperature: float = 2.0,
        distill_weight: DistillWeight = "original",
        validation: float = 0.1,
        bias_epochs: int | None = None,
        bias_lr: float = 0.1,
        bias_optimizer: BiasOptimizer = "sgd",
        bias_l2: float = 0.1,
        train_mb_size: int = 32,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] = (),
        evaluator: Any = None,
        eval_every: int = -1,
    ) -> None:
        """See the class."""
        _check(model, temperature, bias_epochs)
        self._temperature = float(temperature)
        self._weight = parse_distill_weight(distill_weight)
        self._share = parse_share(validation)
        self._bias_epochs = bias_epochs
        self._fit = BiasFit(optimizer=bias_optimizer, lr=bias_lr, l2=bias_l2)
        rules = Rules(update="experience", replay="mixed", only=("update",))
        memory.suit(rules, method="BiC", strategy=self)
        require_stream(memory.rules, "BiC")
        super().__init__(
            model=BiasCorrected(model),
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
        self.held_out = HeldOut()
        self._stage = _Stage()
        memory.hold_out = self._hold_out

    def check_stream(self, facts: StreamFacts) -> None:
        """Refuse more classes than the memory has room for.

        Raises:
            BadInputError: there are fewer than two slots a class.
        """
        if facts.slots is not None:
            samples_a_class(facts.slots, facts.n_classes, self._share)

    def criterion(self) -> Tensor:
        """Cross-entropy; in training mixed with the distillation of what was known before."""
        hard: Tensor = self._criterion(self.mb_output, self.mb_y)
        stage = self._stage
        if not self.is_training or stage.factors.distill == 0:
            return hard
        soft = distillation(self.mb_output, stage.teacher(self.mb_x), stage.old, self._temperature)
        return stage.factors.distill * soft + stage.factors.hard * hard

    def state_dict(self) -> dict[str, Any]:
        """The validation samples and, within an experience, what is distilled from."""
        return {"held_out": self.held_out.state_dict(), "stage": self._stage.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; call it when the model was put back."""
        self.held_out.load_state_dict(state["held_out"])
        self._stage.load_state_dict(state["stage"], like=self.model)
        self._stage.factors = self._factors()

    def _hold_out(self, source: RawSource, number: int) -> Tensor:  # noqa: ARG002 - see `HoldOut`
        """Rows of an experience that are for validation only; called before it is trained on."""
        slots = self._slots(source)
        classes = torch.unique(torch.cat((self.model.seen.cpu(), source.labels)))
        per_class = samples_a_class(slots, len(classes), self._share)
        ids = self._first_id(source) + torch.arange(len(source)).numpy()
        rng = generator(self.memory.seed, f"held out from {ids[0]}")
        self.held_out.shrink(per_class, rng)
        rows = self.held_out.choose(ids, source.labels, per_class, rng)
        self.held_out.take(source, rows, ids)
        self.memory.carousel.resize(slots - len(self.held_out))
        return rows

    def _before_training_exp(self, **kwargs: Any) -> None:
        super()._before_training_exp(**kwargs)
        if self._stage.first_id == self.memory.first_id:
            return  # it was interrupted, and goes on
        current = torch.unique(self.memory.whole_source.labels).to(self.device)
        old = self.model.seen.clone()
        teacher = Teacher()
        if len(old):
            teacher.take(self.model)
        self._stage = _Stage(self.memory.first_id, old, current, teacher)
        self._stage.factors = self._factors()
        self.model.begin(self._stage.new)

    def _after_training_exp(self, **kwargs: Any) -> None:
        if self._can_compare():
            self._correct_bias()
        self._stage = _Stage()
        super()._after_training_exp(**kwargs)

    def _can_compare(self) -> bool:
        """Whether there are validation samples of new classes and of old ones."""
        is_new = torch.isin(self.held_out.labels, self._stage.new.cpu())
        return bool(is_new.any()) and not bool(is_new.all())

    def _correct_bias(self) -> None:
        """Stage 2."""
        epochs = self._bias_epochs or max(self.train_epochs, _LEAST_BIAS_EPOCHS)
        labels = self.held_out.labels.to(self.device)
        logits = self._held_out_logits()
        self.model.apply_line(self._fit(logits, labels, self._stage.new, epochs=epochs))

    @torch.no_grad()
    def _held_out_logits(self) -> Tensor:
        """(n, C) of the frozen network: it gives the same in every pass, so one is enough."""
        assert self.held_out.x is not None
        transform = evaluation_transform(
            self.experience.dataset, self.memory.source, self.memory.transform
        )
        logits = []
        with evaluating(self.model):
            for raw in torch.split(self.held_out.x, self.eval_mb_size):
                x = raw.to(self.device)
                logits.append(self.model(x if transform is None else transform(x)))
        return torch.cat(logits)

    def _factors(self) -> Factors:
        """The two weights of the loss; a class that comes back is no class to preserve."""
        stage, value = self._stage, self._weight
        kept = len(stage.old)
        if not isinstance(value, float):
            value, kept = "incremental", kept - int(torch.isin(stage.old, stage.current).sum())
        factors = weights(value, kept, len(stage.old) + len(stage.new))
        assert factors is not None
        return factors

    def _slots(self, source: RawSource) -> int:
        carousel = self.memory.carousel
        if carousel.slots is None:  # a size in bytes means slots once a sample is known
            nothing = torch.zeros(0, dtype=torch.int64)
            carousel.save(None, nothing.numpy(), x=source.rows(nothing))
        assert carousel.slots is not None
        return carousel.slots

    def _first_id(self, source: RawSource) -> int:
        return self.memory.carousel.reserve(*place_of(self, self.memory.run), len(source))


class _Stage:
    """Stage 1 of an experience: who teaches it, and which classes; nothing between experiences.

    Args:
        first_id: of the experience's samples; -1 between experiences.
        old: (k,) int64 classes seen before.
        current: (c,) int64 classes of the experience.
        teacher: the model as it was.
    """

    def __init__(
        self,
        first_id: int = -1,
        old: Tensor | None = None,
        current: Tensor | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        nothing = torch.zeros(0, dtype=torch.int64)
        self.first_id = first_id
        self.old = nothing if old is None else old
        self.current = nothing if current is None else current
        self.teacher = Teacher() if teacher is None else teacher
        self.factors = Factors(0.0, 1.0)

    @property
    def new(self) -> Tensor:
        """(m,) int64 classes that were never seen before."""
        return self.current[~torch.isin(self.current, self.old)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "first_id": self.first_id,
            "old": self.old,
            "current": self.current,
            "teacher": self.teacher.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], *, like: BiasCorrected) -> None:
        self.first_id = int(state["first_id"])
        self.old = state["old"].to(like.seen.device)
        self.current = state["current"].to(like.seen.device)
        self.teacher.load_state_dict(state["teacher"], like=like)


def _check(model: Module, temperature: float, bias_epochs: int | None) -> None:
    if not 0 < temperature < float("inf"):
        raise BadInputError(f"temperature is {temperature}", fix="give a number above 0")
    if bias_epochs is not None and bias_epochs < 1:
        raise BadInputError(f"bias_epochs is {bias_epochs}", fix="give at least 1, or None")
    if is_multi_task_module(model):
        raise BadInputError(
            "the model has a head a task, and BiC chooses among all classes",
            fix="give a model with one head",
        )
