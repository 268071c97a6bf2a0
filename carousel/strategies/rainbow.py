"""Rainbow Memory: keep samples that the model is sure of, that it doubts, and all in between.

Bang, Kim, Yoo, Ha and Choi, "Rainbow Memory: Continual Learning with a Memory of Diverse Samples"
(CVPR 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from carousel.errors import BadInputError
from carousel.memory.seeds import generator
from carousel.strategies.batch import evaluation_transform
from carousel.strategies.candidates import Candidates
from carousel.strategies.facts import StreamFacts
from carousel.strategies.memory_loader import MemoryLoader
from carousel.strategies.perturb import RandomPerturbation, check_images
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.recipe import GateOnMixed, RestartingTrainer, Schedule
from carousel.strategies.rules import Rules
from carousel.strategies.stride import stride_rows
from carousel.strategies.uncertainty import Perturbation, evaluating, perturbed_uncertainty
from carousel.strategies.update import ByExperience

__all__ = ["RainbowMemory", "SavedOnly"]

Reals = npt.NDArray[np.float64]


class SavedOnly(ByExperience):
    """Samples are saved in the background; who gets a slot is the strategy's own affair."""

    def end(self) -> None:
        """The memory stays as it is."""


class RainbowMemory(RestartingTrainer):
    """Choose diverse samples by uncertainty, and train on them alone.

    The first epoch of an experience passes over the stream, with rows of the memory beside it.
    Then every sample of the experience and of the memory is judged by `perturbed_uncertainty`,
    with the head that knows the new classes, and `stride_rows` chooses the new memory; in the
    first experience the choice is random and balanced. The other epochs pass over the memory
    alone. The weights go on from one experience to the next.

    With swapping, the epochs on the memory bring other stored samples in: see
    `docs/methods/rainbow.md`, also for the deviations from the paper.

    Args:
        model: what to train; a growing head of Avalanche is fine.
        optimizer: over the model's parameters; its learning rate is the largest one. The paper:
            SGD, 0.05, Nesterov momentum 0.9, decay 1e-4.
        memory: the replay memory.
        copies: perturbed copies that judge a sample; A in the paper.
        perturb: makes them of raw samples, see `Perturbation`; by default `RandomPerturbation`,
            which takes images.
        cutmix_p: share of the steps with CutMix; 0 for samples that are no images.
        cutmix_alpha: of the Beta distribution of CutMix.
        clip: largest norm of the gradient; None, as in the paper, does not clip.
        schedule: ``"restarts"``: a tenth of the rate in the first epoch; on the memory again an
            epoch at a tenth, then cosines over 1, 2, 4, ... epochs; so 3, 5, 9, 17, ... epochs
            end low; ``"constant"``.
        gate_on_mixed: what the gate sees of steps with CutMix: ``"skip"`` nothing, and these steps
            swap nothing; ``"clean"`` the samples before mixing, in a further forward pass;
            ``"as_is"`` the output for the mixed ones, as in the CarM authors' code.
        augment: random changes of the model's input in training, before CutMix; from (n, *shape)
            and a numpy generator to (n, *shape). `RandomPerturbation` stands for the paper's
            RandAugment.
        train_mb_size: samples of the stream a step, beside as many of the memory; then of the
            memory.
        train_epochs: passes: one over the stream, the others over the memory.
        eval_mb_size: samples a step of the evaluation; by default `train_mb_size`.
        device: where the model is trained.
        plugins: further plugins, called after the memory.
        evaluator: of Avalanche; none by default.
        eval_every: see Avalanche.

    Raises:
        BadInputError: an option is out of range, or the memory has a rule that does not go with
            the method; on training, samples that are no images and no `perturb`.

    Example:
        >>> from carousel.models import make_model
        >>> from carousel.storage import MemoryTier
        >>> model = make_model("cnn", (1, 8, 8), 10, seed=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
        >>> with CarMPlugin(100, MemoryTier()) as memory:
        ...     rm = RainbowMemory(model=model, optimizer=optimizer, memory=memory, train_epochs=9)
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        memory: CarMPlugin,
        copies: int = 12,
        perturb: Perturbation | None = None,
        cutmix_p: float = 0.5,
        cutmix_alpha: float = 1.0,
        clip: float | None = None,
        schedule: Schedule = "restarts",
        gate_on_mixed: GateOnMixed = "skip",
        augment: Perturbation | None = None,
        train_mb_size: int = 8,
        train_epochs: int = 257,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] = (),
        evaluator: Any = None,
        eval_every: int = -1,
    ) -> None:
        """See the class."""
        if copies < 2:
            raise BadInputError(f"copies is {copies}", fix="give at least 2")
        super().__init__(
            model=model,
            optimizer=optimizer,
            memory=memory,
            cutmix_p=cutmix_p,
            cutmix_alpha=cutmix_alpha,
            clip=clip,
            schedule=schedule,
            gate_on_mixed=gate_on_mixed,
            augment=augment,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
        )
        self.copies = copies
        self._needs_images = perturb is None
        self.perturb = RandomPerturbation() if perturb is None else perturb
        rules = Rules(update=SavedOnly, replay="concat", only=("update", "replay", "admission"))
        memory.suit(rules, method="Rainbow Memory", strategy=self)

    @property
    def schedule_epoch(self) -> int:
        """The epochs on the memory count from 0 again."""
        return max(self._epoch - 1, 0)

    def check_stream(self, facts: StreamFacts) -> None:
        """Refuse samples that cannot be perturbed or mixed.

        Raises:
            BadInputError: they are no images, and no `perturb` is given.
        """
        if self._needs_images:
            check_images(facts.input_shape, facts.dtype)
        super().check_stream(facts)

    @property
    def judges(self) -> bool:
        """Nothing is swapped while the stream is trained on."""
        return self._epoch > 0

    def resume_within(self, epoch: int) -> None:
        """Go on with this epoch of the experience; see `RunCheckpoint`."""
        super().resume_within(epoch)
        if epoch > 0:
            self.memory.train_on_memory(self)

    def _before_training_epoch(self, **kwargs: Any) -> None:
        if self._epoch > 0 and not isinstance(self.dataloader, MemoryLoader):
            self.memory.train_on_memory(self)
        super()._before_training_epoch(**kwargs)

    def _after_training_epoch(self, **kwargs: Any) -> None:
        if self._epoch == 0:
            self._choose()
        super()._after_training_epoch(**kwargs)

    def _choose(self) -> None:
        """Give the slots to samples of the memory and of the experience, by their uncertainty."""
        slots = self.memory.carousel.capacity
        assert slots is not None  # samples are being saved
        rng = generator(self.memory.seed, f"rainbow {self.clock.train_exp_counter}")
        candidates = Candidates.of(self.memory)
        if self.memory.carousel.filled and len(candidates) > slots:
            unsure = self._uncertainty(candidates, rng)
        else:
            unsure = np.zeros(len(candidates))
        candidates.keep(stride_rows(unsure, candidates.labels, slots, rng))

    def _uncertainty(self, candidates: Candidates, rng: np.random.Generator) -> Reals:
        plain = evaluation_transform(
            self.experience.dataset, self.memory.source, self.memory.transform
        )

        def predict(x: Tensor, tasks: Tensor) -> Tensor:
            return self.predict(x if plain is None else plain(x), tasks.to(self.device))

        batches = ((x.to(self.device), tasks) for x, tasks in candidates.batches())
        with evaluating(self.model):
            found = perturbed_uncertainty(
                batches, predict, self.perturb, copies=self.copies, rng=rng
            )
        return found.numpy()
