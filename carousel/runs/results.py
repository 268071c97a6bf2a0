"""The accuracies of a run as they come in, and the two files of the run folder that keep them."""

from __future__ import annotations

import numpy as np

from carousel.report.metrics import Matrix
from carousel.runs.evaluate import Answers
from carousel.runs.folder import RunFolder

__all__ = ["UNTRAINED", "Results"]

UNTRAINED = -1
"""The number under which the answers of the untrained model are kept."""


class Results:
    """Accuracy on every experience after training on each, class- and task-incremental.

    Args:
        experiences: in the stream.

    Attributes:
        class_il: (T, T) accuracies in 0..1, NaN in rows to come.
        task_il: the same, choosing among the classes of the experience.
        untrained: of the model before training, NaN until it was tested.
    """

    def __init__(self, experiences: int) -> None:
        self.class_il: Matrix = np.full((experiences, experiences), np.nan)
        self.task_il: Matrix = self.class_il.copy()
        nothing = np.full(experiences, np.nan)
        self.untrained = Answers(nothing, nothing.copy())

    def __len__(self) -> int:
        return len(self.class_il)

    def put(self, after: int, answers: Answers) -> None:
        """Keep the answers after this experience, or `UNTRAINED`."""
        if after == UNTRAINED:
            self.untrained = answers
        else:
            self.class_il[after] = answers.class_il
            self.task_il[after] = answers.task_il

    def lacking(self, done: int) -> list[int]:
        """Which of the first `done` experiences have no row."""
        both = self.class_il[:done] + self.task_il[:done]
        return [int(row) for row in np.flatnonzero(np.isnan(both).any(axis=1))]

    def save(self, folder: RunFolder) -> None:
        """Write both files, each replaced in one step."""
        folder.write_matrix(self.task_il, self.untrained.task_il, folder.task_matrix_file)
        folder.write_matrix(self.class_il, self.untrained.class_il)

    def load(self, folder: RunFolder, done: int) -> None:
        """Take the rows of the first `done` experiences from the folder; what it lacks stays."""
        class_il, task_il = folder.read_matrix(), folder.read_matrix(folder.task_matrix_file)
        if class_il is None or task_il is None:
            return
        self.class_il[:done], self.task_il[:done] = class_il[0][:done], task_il[0][:done]
        self.untrained = Answers(class_il[1], task_il[1])
