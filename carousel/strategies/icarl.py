"""iCaRL: learn by logits, keep exemplars by herding, predict by the nearest class mean.

After "iCaRL: Incremental Classifier and Representation Learning" (Rebuffi et al., CVPR 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot
from torch.optim import Optimizer

from carousel.errors import BadInputError
from carousel.strategies.batch import BatchTransform, evaluation_transform
from carousel.strategies.distill import DistillWeight, parse_distill_weight, weights
from carousel.strategies.exemplars import ExemplarOptions, Exemplars, MeansRule, TaskEndRule
from carousel.strategies.facts import StreamFacts
from carousel.strategies.lean import LeanTemplate
from carousel.strategies.loss import SeenClassesBCE
from carousel.strategies.nearest_mean import FeatureSpec, NearestMean
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.rules import Rules, require_stream
from carousel.strategies.teacher import Teacher

__all__ = ["DistilledBCE", "ICaRL"]


class DistilledBCE(SeenClassesBCE):
    """Sigmoid cross-entropy over the classes seen, where old classes follow the older model.

    The target of an old class is the sigmoid of the teacher's logit, for every sample, old or
    new; that of a new class is 1 for samples of the class and else 0 (Algorithm 3 of the paper).
    Classes of the experience at hand are new, also those that come back.

    Args:
        distill_weight: ``"original"`` is the above. A share a, or ``"incremental"``: a times the
            mean over the old classes against the teacher, and 1 - a times the mean over all
            classes seen against the labels.

    Attributes:
        new: (k,) classes of the experience at hand.
        begun: (m,) classes first met since the last `learned`, which no teacher knows.

    Example:
        >>> loss = DistilledBCE()
        >>> loss.see(torch.tensor([0]))
        >>> loss.see_new(torch.tensor([1]))
        >>> teacher = torch.tensor([[0.0, 9.0]])  # knows nothing of class 1
        >>> round(loss(torch.zeros(1, 2), torch.tensor([1]), teacher).item(), 4)
        0.6931
    """

    def __init__(self, distill_weight: DistillWeight = "original") -> None:
        super().__init__()
        self.distill_weight = parse_distill_weight(distill_weight)
        self.new = torch.zeros(0, dtype=torch.int64)
        self.begun = self.new

    def see_new(self, labels: Tensor) -> None:
        """Add classes: those of the experience that begins."""
        self.new = torch.unique(labels)
        first_met = self.new[~torch.isin(self.new, self.classes)]
        self.begun = torch.cat((self.begun, first_met))
        self.see(self.new)

    def learned(self) -> None:
        """The experience is learned to its end, and the next teacher knows its classes."""
        self.begun = self.begun[:0]

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Add the classes of the experience."""
        self.see_new(torch.tensor([int(y) for y in strategy.experience.dataset.targets]))

    @property
    def distils(self) -> bool:
        """Whether a teacher's logits would make a difference."""
        return self.distill_weight != 0 and bool(self._is_old().any())

    def __call__(self, logits: Tensor, labels: Tensor, teacher: Tensor | None = None) -> Tensor:
        """The loss of (n, C) logits against (n,) labels and (n, C') logits of the teacher."""
        if teacher is None or not self.distils:
            return super().__call__(logits, labels)
        is_old = self._is_old()
        classes, old = self.classes.to(logits.device), self.classes[is_old].to(logits.device)
        soft = teacher[:, old].sigmoid()
        factors = weights(self.distill_weight, len(old), len(classes))
        if factors is None:
            targets = one_hot(labels, logits.shape[1]).to(logits.dtype)
            targets[:, old] = soft
            return binary_cross_entropy_with_logits(logits[:, classes], targets[:, classes])
        hard = super().__call__(logits, labels)
        distilled = binary_cross_entropy_with_logits(logits[:, old], soft)
        return factors.distill * distilled + factors.hard * hard

    def state_dict(self) -> dict[str, Tensor]:
        """The classes seen, and those of them that no teacher knows."""
        return {**super().state_dict(), "begun": self.begun}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put them back."""
        super().load_state_dict(state)
        self.begun = state["begun"]

    def _is_old(self) -> Tensor:
        """(c,) bool: which of the classes seen the teacher speaks for."""
        return ~torch.isin(self.classes, torch.cat((self.new, self.begun)))


class ICaRL(LeanTemplate):
    """iCaRL with a carousel: stream and exemplars shuffled together, old exemplars swapped.

    ``strategy.model`` wraps the caller's network (`NearestMean`; the network is its ``net``):
    in training mode it gives logits, in evaluation mode minus the distances to the class means.
    Exemplars and means change at the end of an experience, after its last swap; until the end of
    the first one, predictions are by logits.

    Args:
        model: what to train; its features are what goes into its last linear layer. A growing
            head of Avalanche is fine.
        optimizer: over the model's parameters.
        memory: the replay memory; it changes by herding, at the end of an experience, and is
            shuffled into the stream if it was not told otherwise.
        distill_weight: see `DistilledBCE`.
        exemplars: ``"rerank"`` or ``"keep"``, at the end of an experience; see `ExemplarOptions`,
            as for the next three.
        means: class means of the exemplars in ``"memory"``, or of ``"stored"`` samples.
        stored_per_class: most samples of a class to draw from storage for these two; without
            swapping none is drawn.
        mirror: class means count mirror images as well: True only where a mirrored sample is
            still one of its class (photos, not digits or letters).
        features: where features are, if not there; see `FeatureSpec`.
        eval_transform: from raw samples to model input as in evaluation, a batch at a time; by
            default the memory's ``transform``, or else the experience's own of evaluation.
        train_mb_size: samples a step, those of the memory included.
        train_epochs: passes over an experience.
        eval_mb_size: samples a step of the evaluation; by default `train_mb_size`.
        device: where the model is trained.
        plugins: further plugins, called after the memory.
        evaluator: of Avalanche; none by default. The loss of an evaluation is that of the scores.
        eval_every: see Avalanche.

    Raises:
        BadInputError: an option is none of its choices, the model has no features to be found, or
            the memory was told to change by another rule.

    Example:
        >>> from carousel.models import make_model
        >>> from carousel.storage import MemoryTier
        >>> model = make_model("mlp", (1, 8, 8), 10, seed=0)
        >>> optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        >>> with CarMPlugin(100, MemoryTier()) as memory:
        ...     icarl = ICaRL(model=model, optimizer=optimizer, memory=memory, train_epochs=10)
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        memory: CarMPlugin,
        distill_weight: DistillWeight = "original",
        exemplars: TaskEndRule = "rerank",
        means: MeansRule = "memory",
        stored_per_class: int = 100,
        mirror: bool = False,
        features: FeatureSpec = None,
        eval_transform: BatchTransform | None = None,
        train_mb_size: int = 32,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] = (),
        evaluator: Any = None,
        eval_every: int = -1,
    ) -> None:
        """See the class."""
        options = ExemplarOptions(exemplars, means, stored_per_class, mirror)
        self._loss = DistilledBCE(distill_weight)
        wrapped = NearestMean(model, features)
        memory.suit(
            Rules(
                update=lambda carousel: Exemplars(
                    carousel,
                    model=wrapped,
                    to_input=self._eval_input,
                    options=options,
                    from_storage=memory.swaps,
                    seed=memory.seed,
                ),
                replay="mixed",
                only=("update", "admission"),
            ),
            method="iCaRL",
            strategy=self,
        )
        require_stream(memory.rules, "iCaRL")
        super().__init__(
            model=wrapped,
            optimizer=optimizer,
            criterion=self._loss,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[memory, *plugins],
            evaluator=evaluator,
            eval_every=eval_every,
        )
        self.memory = memory
        self.teacher = Teacher()
        self._mirror = mirror
        self._eval_given = memory.transform if eval_transform is None else eval_transform
        self._eval_transform: BatchTransform | None = None

    def check_stream(self, facts: StreamFacts) -> None:
        """Refuse a memory of fewer slots than classes, and to mirror what is no image.

        Raises:
            BadInputError: one of these.
        """
        if facts.slots is not None and facts.slots < facts.n_classes:
            raise BadInputError(
                f"the memory has {facts.slots} slots and the stream {facts.n_classes} classes",
                fix="iCaRL needs an exemplar a class: give a larger memory_size",
            )
        if self._mirror and len(facts.input_shape) not in (2, 3):
            raise BadInputError(
                f"mirror is True and samples have the shape {facts.input_shape}",
                fix="use mirror=False with samples that are no images",
            )

    def check_model_and_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Let the model grow, and find its features before anything is stored."""
        super().check_model_and_optimizer(*args, **kwargs)
        self._eval_transform = evaluation_transform(
            self.experience.dataset, self.memory.source, self._eval_given
        )
        self.model.features(self._eval_input(self.memory.source.rows(torch.tensor([0]))))

    def criterion(self) -> Tensor:
        """The loss of the mini-batch; in training with the teacher's word on it."""
        soft = None
        if self.is_training and self.teacher.known and self._loss.distils:
            soft = self.teacher(self.mb_x)
        return self._loss(self.mb_output, self.mb_y, soft)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model, the optimizer and the plugins."""
        return {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; the model is in its place already.

        Raises:
            CheckpointError: the teacher was another kind of model.
        """
        self.teacher.load_state_dict(state["teacher"], like=self.model.net)

    def _after_training_exp(self, **kwargs: Any) -> None:
        self.teacher.take(self.model.net)
        self._loss.learned()
        super()._after_training_exp(**kwargs)

    def _eval_input(self, raw: Tensor) -> Tensor:
        x = raw.to(self.device)
        return x if self._eval_transform is None else self._eval_transform(x)
