"""The bounds that every comparison needs: no memory at all, and all data at once."""

from __future__ import annotations

from typing import Any

from avalanche.benchmarks.utils import concat_datasets

from carousel.strategies.lean import LeanTemplate

__all__ = ["Joint", "Naive"]


class Naive(LeanTemplate):
    """Lower bound: train on each experience alone, with nothing against forgetting."""

    memory: None = None


class Joint(LeanTemplate):
    """Upper bound: train on the samples of all experiences met so far, not only on the present.

    The weights go on from the experience before, and every experience gets the same number of
    passes, now over all samples so far. After the last experience the model has been trained on
    all data together, as an offline learner is; the rows before it are the same for a shorter
    stream. All data sets are kept, so its RAM is not bounded.
    """

    memory: None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._past: dict[int, Any] = {}

    def recall(self, experience: Any) -> None:
        """Count an experience as met, without training on it: for resuming from a checkpoint."""
        self._past[experience.current_experience] = experience.dataset

    def train_dataset_adaptation(self, **_: Any) -> None:
        """Train on everything so far."""
        self.recall(self.experience)
        self.adapted_dataset = concat_datasets(list(self._past.values())).train()
