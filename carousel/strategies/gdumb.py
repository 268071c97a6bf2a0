"""GDumb: keep a balanced memory, and train a model from scratch on nothing but that memory.

Prabhu, Torr and Dokania, "GDumb: A Simple Approach that Questions Our Progress in Continual
Learning" (ECCV 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from carousel.memory import Carousel
from carousel.strategies.initial import InitialWeights
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.raw import RawSource
from carousel.strategies.recipe import GateOnMixed, RestartingTrainer, Schedule
from carousel.strategies.rules import Rules
from carousel.strategies.update import ByExperience, Ints

__all__ = ["AtStart", "GDumb"]


class AtStart(ByExperience):
    """Samples are saved and compete for slots before the training on their experience."""

    _begun = False
    _resuming = False

    def begin(self, source: RawSource, ids: Ints) -> None:
        """Save every sample in the background, and let them compete for slots."""
        super().begin(source, ids)
        if not self._resuming:
            super().end()
        self._begun, self._resuming = True, False

    def end(self) -> None:
        """The memory stays as it is."""
        self.forsake()

    def forsake(self) -> None:
        """An experience that broke off starts anew when it is presented again."""
        self._begun = False

    def state_dict(self) -> dict[str, Any]:
        """Whether the samples of an experience have competed already."""
        return {"begun": self._begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """They do not compete twice."""
        self._resuming = bool(state["begun"])


class GDumb(RestartingTrainer):
    """Greedy sampler and dumb learner: the memory alone makes the model, anew each experience.

    Before the training on an experience its samples compete for slots by the paper's greedy
    balancing sampler (Algorithm 1); then the caller's model is put back, in place, to the weights
    it had at first, and trained on the memory for `train_epochs` passes. The paper trains once,
    when it is asked for predictions; here that is after each experience, as is usual. What an
    earlier experience taught the model plays no part, so only its samples can.

    With swapping, every pass brings other stored samples in: see `docs/methods/gdumb.md`, also for
    the deviations from the paper.

    Args:
        model: what to train; a growing head of Avalanche is fine.
        optimizer: over the model's parameters; its learning rate is the largest one, and the
            schedule falls to a hundredth of it. The paper: SGD, 0.05, momentum 0.9, decay 1e-6.
        memory: the replay memory; its admission is ``"greedy"`` if left open.
        cutmix_p: share of the steps with CutMix; 0 for samples that are no images.
        cutmix_alpha: of the Beta distribution of CutMix.
        clip: largest norm of the gradient; None does not clip.
        schedule: ``"restarts"``: a warm-up epoch at a tenth of the rate, then cosines over 1, 2,
            4, ... epochs, so that 2, 4, 8, ... epochs end low; ``"constant"``.
        gate_on_mixed: what the gate sees of steps with CutMix: ``"skip"`` nothing, and these steps
            swap nothing; ``"clean"`` the samples before mixing, in a further forward pass;
            ``"as_is"`` the output for the mixed ones, as in the CarM authors' code.
        train_mb_size: samples of the memory a step.
        train_epochs: passes over the memory.
        eval_mb_size: samples a step of the evaluation; by default `train_mb_size`.
        device: where the model is trained.
        plugins: further plugins, called after the memory.
        evaluator: of Avalanche; none by default.
        eval_every: see Avalanche.

    Raises:
        BadInputError: an option is out of range, or the memory has a rule that does not go with
            the method.

    Example:
        >>> from carousel.models import make_model
        >>> from carousel.storage import MemoryTier
        >>> model = make_model("cnn", (1, 8, 8), 10, seed=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        >>> with CarMPlugin(100, MemoryTier()) as memory:
        ...     gdumb = GDumb(model=model, optimizer=optimizer, memory=memory, train_epochs=16)
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        memory: CarMPlugin,
        cutmix_p: float = 0.5,
        cutmix_alpha: float = 1.0,
        clip: float | None = 10.0,
        schedule: Schedule = "restarts",
        gate_on_mixed: GateOnMixed = "skip",
        train_mb_size: int = 16,
        train_epochs: int = 256,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] = (),
        evaluator: Any = None,
        eval_every: int = -1,
    ) -> None:
        """See the class."""
        super().__init__(
            model=model,
            optimizer=optimizer,
            memory=memory,
            cutmix_p=cutmix_p,
            cutmix_alpha=cutmix_alpha,
            clip=clip,
            schedule=schedule,
            gate_on_mixed=gate_on_mixed,
            augment=None,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
        )
        rules = Rules(
            update=self._update_of,
            replay="memory",
            admission="greedy",
            only=("update", "replay"),
        )
        memory.suit(rules, method="GDumb", strategy=self)
        self._initial = InitialWeights(model)

    def check_model_and_optimizer(self, **kwargs: Any) -> None:
        """Put the model back to its first weights and let it grow, before it is trained."""
        if self._resuming:
            super().check_model_and_optimizer(**kwargs)
            return
        self._initial.put_back(self.model)
        super().check_model_and_optimizer(**kwargs)
        self._initial.take(self.model)

    def _before_training(self, **kwargs: Any) -> None:
        self._update.forsake()
        super()._before_training(**kwargs)

    def _update_of(self, carousel: Carousel) -> AtStart:
        self._update = AtStart(carousel)
        return self._update

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model, the optimizer and the plugins."""
        return {**super().state_dict(), "initial": self._initial.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; call it before training."""
        super().load_state_dict(state)
        self._initial.load_state_dict(state["initial"])
