"""Testing a model on the experiences of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module

from carousel.data import Split, Stream, load_stream
from carousel.errors import BadInputError
from carousel.models import make_model
from carousel.report.metrics import Matrix
from carousel.runs.build import pick_device
from carousel.runs.folder import RunFolder

__all__ = ["accuracies", "evaluate_run", "split_sizes"]

_BATCH = 512


def accuracies(
    model: Module,
    stream: Stream,
    device: torch.device,
    *,
    between: Callable[[], None] | None = None,
) -> Matrix:
    """Accuracy on the test samples of every experience, learned or not yet.

    The choice is among all classes of the stream: nothing tells the model which experience a
    sample is from.

    Args:
        model: gives logits (n, C); left in the mode in which it was found.
        stream: whose test samples are used.
        device: on which the model is.
        between: called between experiences, to let a user stop.

    Returns:
        (T,) float64 in 0..1; 0 for an experience without test samples.
    """
    was_training = model.training
    model.eval()
    try:
        row = []
        for split in stream.test:
            row.append(_accuracy(model, split, stream.transform, device))
            if between is not None:
                between()
        return np.array(row, dtype=np.float64)
    finally:
        model.train(was_training)


def split_sizes(splits: Sequence[Split]) -> npt.NDArray[np.int64]:
    """(T,) number of test samples of each experience."""
    return np.array([len(split) for split in splits], dtype=np.int64)


def evaluate_run(
    run: Path, *, benchmark: str | None, data_root: Path | None, device: str
) -> dict[str, Any]:
    """Test the model of a run folder.

    Args:
        run: the folder.
        benchmark: another stream than the run's, with samples of the same shape.
        data_root: folder of data files, if not the run's.
        device: to test on.

    Returns:
        Accuracy and test samples of each experience, and the accuracy over all classes.

    Raises:
        BadInputError: the folder has no model, or the stream does not fit it.
    """
    folder = RunFolder(run)
    if not (folder.started and folder.model_file.is_file()):
        raise BadInputError(
            f"{run} holds no finished run", fix="give a run folder with a model.pt in it"
        )
    config = folder.read_config()
    other = benchmark is not None and benchmark != config.benchmark
    stream = load_stream(
        benchmark or config.benchmark,
        experiences=None if other else config.experiences,
        scenario=config.scenario,
        seed=config.class_order_seed,
        root=data_root or config.data_root,
        limit=config.limit,
    )
    where = pick_device(device)
    model = make_model(config.model, stream.input_shape, stream.n_classes, seed=config.seed)
    try:
        model.load_state_dict(torch.load(folder.model_file, weights_only=True))
    except RuntimeError:
        raise BadInputError(
            f"the model of {run} does not take {stream.name}: samples "
            f"{'x'.join(map(str, stream.input_shape))}, {stream.n_classes} classes",
            fix="give a benchmark with samples and classes like those of the run",
        ) from None
    row = accuracies(model.to(where), stream, where)
    counts = split_sizes(stream.test)
    return {
        "run": str(run),
        "model": config.model,
        "benchmark": stream.name,
        "accuracies": row.tolist(),
        "test_samples": counts.tolist(),
        "average_accuracy": float(row.mean()),
        "final_accuracy": float(np.average(row, weights=counts)),
    }


@torch.no_grad()
def _accuracy(
    model: Module, split: Split, transform: Callable[[Tensor], Tensor], device: torch.device
) -> float:
    right = 0
    for start in range(0, len(split), _BATCH):
        x = transform(split.x[start : start + _BATCH].to(device))
        y = split.y[start : start + _BATCH].to(device)
        right += int((model(x).argmax(dim=1) == y).sum())
    return right / max(len(split), 1)
