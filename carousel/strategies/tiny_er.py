"""TinyER: online experience replay from a very small memory.

After Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import CrossEntropyLoss, Module
from torch.optim import Optimizer

from carousel.errors import BadInputError
from carousel.strategies.facts import StreamFacts
from carousel.strategies.lean import LeanTemplate
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.rules import Rules
from carousel.strategies.task_mask import TaskClasses

__all__ = ["TinyER"]

_MEMORY_BATCH = 10
_FIX = (
    "give the benchmark task labels: to_benchmark(stream, task_labels=True), or "
    "nc_benchmark(..., task_labels=True)"
)


class TinyER(LeanTemplate):
    """Experience replay for one pass over a stream, with a carousel.

    Each step trains on 10 samples of the stream and 10 of the memory, by the cross-entropy averaged
    over all rows; then the batch of the stream is stored and offered to the memory (Chaudhry et
    al., 2019, Algorithm 1). Replay, and swapping, start within the first experience.

    Args:
        model: what to train, with one output a class; a growing head of Avalanche is fine.
        optimizer: over the model's parameters; the paper's is plain SGD with learning rate 0.1.
        memory: the replay memory; open rules become a reservoir that is updated every batch, 10
            rows a step, and the ``"score"`` gate. The paper's ring buffer is
            ``CarMPlugin(..., admission="ring")``.
        task_aware: train and test a sample among the classes of its own task only, as the paper
            does: the logits of all others are minus infinity. Mini-batches must carry task labels.
            The gate judges all logits, as in the CarM paper's system.
        train_mb_size: samples of the stream a step.
        train_epochs: passes over an experience; the paper's is 1.
        eval_mb_size: samples a step of the evaluation; by default `train_mb_size`.
        device: where the model is trained.
        plugins: further plugins, called after the memory.
        evaluator: of Avalanche; none by default.
        eval_every: see Avalanche.

    Attributes:
        task_classes: the classes that each task has had so far, for `task_aware`.

    Raises:
        BadInputError: the memory has rules that do not fit. At the start of training: it is task
            aware and the stream has no task labels.

    Example:
        >>> from carousel.models import make_model
        >>> from carousel.storage import MemoryTier
        >>> model = make_model("mlp", (1, 8, 8), 10, seed=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> with CarMPlugin(100, MemoryTier(), admission="ring") as memory:
        ...     tiny = TinyER(model=model, optimizer=optimizer, memory=memory, task_aware=True)
        ...     tiny.memory.rules.gate, tiny.memory.rules.admission
        ('score', 'ring')
    """

    def __init__(
        self,
        *,
        model: Module,
        optimizer: Optimizer,
        memory: CarMPlugin,
        task_aware: bool = False,
        train_mb_size: int = 10,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] = (),
        evaluator: Any = None,
        eval_every: int = -1,
    ) -> None:
        """See the class."""
        memory.suit(
            Rules(
                update="batch",
                replay="concat",
                admission="reservoir",
                gate="score",
                batch_size_mem=_MEMORY_BATCH,
                only=("update", "replay"),
            ),
            method="TinyER",
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
        self.task_aware = task_aware
        self.task_classes = TaskClasses()

    def check_stream(self, facts: StreamFacts) -> None:
        """Refuse a stream without task labels, if they are needed."""
        if self.task_aware and not facts.task_labels:
            raise BadInputError("task_aware is set and the stream has no task labels", fix=_FIX)

    def forward(self) -> Tensor:
        """Logits of the mini-batch, in training and evaluation; those of other tasks masked."""
        logits: Tensor = super().forward()
        if not self.task_aware:
            return logits
        rows = self.memory.memory_rows
        if rows is not None:
            self.memory.logits_to_judge = logits[rows].detach()
        if len(self.mbatch) < 3:
            raise BadInputError("task_aware is set and a mini-batch has no task labels", fix=_FIX)
        return self.task_classes.mask(logits, self.mb_task_id)

    def state_dict(self) -> dict[str, Any]:
        """The classes of each task, for a checkpoint."""
        return {"task_classes": self.task_classes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.task_classes.load_state_dict(state["task_classes"])

    def _before_training_exp(self, **kwargs: Any) -> None:
        super()._before_training_exp(**kwargs)
        self.task_classes.see(self.memory.source.labels, self.memory.source.tasks)
