"""How GDumb and Rainbow Memory train: CutMix, cosines that restart, a clipped gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from avalanche.models import avalanche_forward
from torch import Tensor
from torch.nn import CrossEntropyLoss, Module
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from carousel.errors import BadInputError
from carousel.memory.seeds import generator, load_state, state_of
from carousel.strategies.cutmix import CutMix, Mixed, mixed_loss
from carousel.strategies.facts import StreamFacts
from carousel.strategies.lean import LeanTemplate
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.schedule import WarmRestarts
from carousel.strategies.uncertainty import Perturbation, evaluating

__all__ = ["GateOnMixed", "RestartingTrainer", "Schedule"]

GateOnMixed: TypeAlias = Literal["skip", "clean", "as_is"]
Schedule: TypeAlias = Literal["restarts", "constant"]


class RestartingTrainer(LeanTemplate):
    """The training that the two methods share; each experience starts it anew.

    At the start of an experience the optimizer's state is cleared and the schedule starts again.
    The epochs that `schedule_epoch` counts get their rates from `WarmRestarts`.

    Args:
        model: what to train; a growing head of Avalanche is fine.
        optimizer: over the model's parameters; its learning rates are the full ones.
        memory: the replay memory.
        cutmix_p: share of the steps that `CutMix` mixes; 0 for samples that are no images.
        cutmix_alpha: of `CutMix`.
        clip: largest norm of the gradient; None does not clip.
        schedule: ``"restarts"``, or ``"constant"``: the rates stay as they are, or as a scheduler
            among the plugins wants them.
        gate_on_mixed: what the gate sees of a step with CutMix: nothing, and nothing is swapped
            (``"skip"``); the replayed samples as they are, in a further forward pass in
            evaluation mode (``"clean"``); the output for the mixed ones (``"as_is"``).
        augment: random changes of the model's input, (n, *shape) with a numpy generator to (n,
            *shape), before CutMix, in training only; such as `RandomPerturbation`.
        training: further arguments of `SupervisedTemplate`.

    Raises:
        BadInputError: an option is out of range.
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        memory: CarMPlugin,
        cutmix_p: float,
        cutmix_alpha: float,
        clip: float | None,
        schedule: Schedule,
        gate_on_mixed: GateOnMixed,
        augment: Perturbation | None,
        plugins: Sequence[Any],
        **training: Any,
    ) -> None:
        _check(clip, schedule, gate_on_mixed)
        self._cutmix = CutMix(cutmix_p, cutmix_alpha, seed=memory.seed)
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=CrossEntropyLoss(),
            plugins=[memory, *plugins],
            **training,
        )
        self.memory = memory
        self.clip = clip
        self.gate_on_mixed = gate_on_mixed
        self.augment = augment
        self._schedule = WarmRestarts(optimizer) if schedule == "restarts" else None
        self._augment_rng = generator(memory.seed, "augment")
        self._mixed: Mixed | None = None
        self._epoch = 0
        self._within = False
        self._resuming = False

    @property
    def judges(self) -> bool:
        """Whether the gate sees the replayed samples of the epoch at hand."""
        return True

    @property
    def schedule_epoch(self) -> int:
        """The epoch that the schedule is in."""
        return self._epoch

    def check_stream(self, facts: StreamFacts) -> None:
        """Refuse samples that have no area to mix.

        Raises:
            BadInputError: with CutMix, for samples without height and width.
        """
        if self._cutmix.p > 0 and len(facts.input_shape) < 2:
            raise BadInputError(
                f"CutMix cannot mix samples of shape {facts.input_shape}", fix="give cutmix_p=0"
            )

    def check_model_and_optimizer(self, **kwargs: Any) -> None:
        """Start the optimizer anew, unless the run goes on within an experience."""
        super().check_model_and_optimizer(**kwargs)
        if not self._resuming:
            self.optimizer.state.clear()
        self._within, self._resuming = True, False

    def resume_within(self, epoch: int) -> None:
        """Go on with this epoch of the experience; see `RunCheckpoint`."""
        self._epoch = epoch

    def forward(self) -> Tensor:
        """The model's output; in training of augmented and, from time to time, mixed samples."""
        self._mixed = None
        if self.is_training:
            if self.augment is not None:
                self.mbatch[0] = self.augment(self.mb_x, self._augment_rng)
            self._mixed = self._cutmix(self.mb_x)
            self._settle_gate()
        if self._mixed is not None:
            self.mbatch[0] = self._mixed.x
        output: Tensor = super().forward()
        return output

    def criterion(self) -> Tensor:
        """Softmax cross-entropy; of a mixed batch against both labels."""
        if self._mixed is None or not self.is_training:
            loss: Tensor = super().criterion()
            return loss
        return mixed_loss(self._criterion, self.mb_output, self.mb_y, self._mixed)

    def optimizer_step(self) -> None:
        """A step along the clipped gradient."""
        if self.clip is not None:
            clip_grad_norm_(self.model.parameters(), self.clip)
        super().optimizer_step()

    def predict(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Logits (n, C) of (n, *shape) model input; the tasks matter to multi-task models only."""
        logits: Tensor = avalanche_forward(self.model, x, tasks)
        return logits

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model, the optimizer and the plugins."""
        return {
            "within": self._within,
            "cutmix": self._cutmix.state_dict(),
            "augment": state_of(self._augment_rng),
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; call it before training."""
        self._resuming = bool(state["within"])
        self._cutmix.load_state_dict(state["cutmix"])
        load_state(self._augment_rng, state["augment"])
        if self._schedule is not None and state["schedule"] is not None:
            self._schedule.load_state_dict(state["schedule"])

    def _before_training(self, **kwargs: Any) -> None:
        self._within = False  # an experience that broke off is not gone on with
        super()._before_training(**kwargs)

    def _before_training_exp(self, **kwargs: Any) -> None:
        self._epoch = 0
        super()._before_training_exp(**kwargs)

    def _before_training_epoch(self, **kwargs: Any) -> None:
        if self._schedule is not None:
            self._schedule.start_epoch(self.schedule_epoch)
        super()._before_training_epoch(**kwargs)

    def _after_training_epoch(self, **kwargs: Any) -> None:
        self._epoch += 1
        super()._after_training_epoch(**kwargs)

    def _after_training_exp(self, **kwargs: Any) -> None:
        self._within = False
        super()._after_training_exp(**kwargs)

    def _settle_gate(self) -> None:
        """What the gate sees of this step; the mini-batch is not mixed yet."""
        rows = self.memory.memory_rows
        if not self.judges:
            self.memory.skip_gate = True
        if rows is None or self._mixed is None or self.memory.skip_gate:
            return
        if self.gate_on_mixed == "skip":
            self.memory.skip_gate = True
        elif self.gate_on_mixed == "clean":
            clean = self.mb_x[rows]
            tasks = self.mbatch[2][rows] if len(self.mbatch) > 2 else clean.new_zeros(len(clean))
            with evaluating(self.model), torch.no_grad():
                self.memory.logits_to_judge = self.predict(clean, tasks.long())


def _check(clip: float | None, schedule: str, gate_on_mixed: str) -> None:
    if clip is not None and not clip > 0:
        raise BadInputError(f"clip is {clip}", fix="give a number above 0, or None")
    if schedule not in ("restarts", "constant"):
        raise BadInputError(f"schedule is {schedule!r}", fix='use "restarts" or "constant"')
    if gate_on_mixed not in ("skip", "clean", "as_is"):
        raise BadInputError(
            f"gate_on_mixed is {gate_on_mixed!r}", fix='use "skip", "clean" or "as_is"'
        )
