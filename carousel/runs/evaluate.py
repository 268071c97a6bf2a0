"""Testing a model on the experiences of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module

from carousel.data import Split, Stream
from carousel.errors import BadInputError
from carousel.models import make_model
from carousel.report.answers import count_right
from carousel.report.metrics import Matrix
from carousel.runs.build import Ingredients, build_strategy, load_run_stream, pick_device
from carousel.runs.config import TrainConfig
from carousel.runs.folder import RunFolder
from carousel.runs.precheck import strategy_options
from carousel.storage import MemoryTier
from carousel.strategies.state import put_back_model, random_state, set_random_state

__all__ = ["Answers", "accuracies", "accuracy_seen", "evaluate_run", "examine", "split_sizes"]

_BATCH = 512


@dataclass(frozen=True, slots=True)
class Answers:
    """Accuracy on each experience, in 0..1; 0 for one without test samples.

    Attributes:
        class_il: (T,) float64, choosing among all classes.
        task_il: (T,) float64, choosing among the classes of the experience.
    """

    class_il: Matrix
    task_il: Matrix


def examine(
    model: Module,
    stream: Stream,
    device: torch.device,
    *,
    experiences: int | None = None,
    between: Callable[[], None] | None = None,
) -> Answers:
    """Test a model on every experience, learned or not yet, with and without telling it which.

    The model is left as it was found, and so are the global random generators: how often a run is
    tested changes nothing in its training.

    Args:
        model: gives logits (n, C).
        stream: whose test samples are used.
        device: on which the model is.
        experiences: only so many of the first; all by default.
        between: called between experiences, to let a user stop.
    """
    rows = []
    with _testing(model):
        for split in stream.test[:experiences]:
            rows.append(_right(model, split, stream.transform, device) / max(len(split), 1))
            if between is not None:
                between()
    class_il, task_il = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return Answers(class_il, task_il)


def accuracies(
    model: Module,
    stream: Stream,
    device: torch.device,
    *,
    between: Callable[[], None] | None = None,
) -> Matrix:
    """(T,) class-incremental accuracies of `examine`."""
    return examine(model, stream, device, between=between).class_il


def accuracy_seen(model: Module, stream: Stream, device: torch.device, experiences: int) -> float:
    """Accuracy over all test samples of the first experiences, choosing among all classes."""
    found = examine(model, stream, device, experiences=experiences).class_il
    counts = split_sizes(stream.test)[:experiences]
    return float(np.average(found, weights=counts))


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
    changes: dict[str, Any] = {"root": data_root or config.data_root}
    if other:
        changes |= {"name": benchmark, "experiences": None, "class_order": "random"}
    stream = load_run_stream(config, **changes)
    where = pick_device(device)
    model = _untrained_model(config, stream, where)
    try:
        put_back_model(model, torch.load(folder.model_file, weights_only=True))
        found = examine(model.to(where), stream, where)
    except RuntimeError:
        raise BadInputError(
            f"the model of {run} does not take {stream.name}: samples "
            f"{'x'.join(map(str, stream.input_shape))}, {stream.n_classes} classes",
            fix="give a benchmark with samples and classes like those of the run",
        ) from None
    counts = split_sizes(stream.test)
    return {
        "run": str(run),
        "model": config.model,
        "benchmark": stream.name,
        "accuracies": found.class_il.tolist(),
        "task_il_accuracies": found.task_il.tolist(),
        "test_samples": counts.tolist(),
        "average_accuracy": float(found.class_il.mean()),
        "final_accuracy": float(np.average(found.class_il, weights=counts)),
        "task_il_average_accuracy": float(found.task_il.mean()),
    }


def _untrained_model(config: TrainConfig, stream: Stream, device: torch.device) -> Module:
    """The model as the strategy of the run has it, which may be a wrapper of the network."""
    net = make_model(config.model, stream.input_shape, stream.n_classes, seed=config.seed)
    # the memory is never filled: what the run's would take need not be there
    small = {"memory_size": stream.n_classes, "storage_budget": None}
    parts = Ingredients(
        config=config.model_copy(update=small),
        stream=stream,
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        device=device,
        options=strategy_options(config),
    )
    with MemoryTier() as tier:
        strategy = build_strategy(parts, tier, run="eval")
        if strategy.memory is not None:
            strategy.memory.close()
        model: Module = strategy.model
        return model


@contextmanager
def _testing(model: Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module has the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    random = random_state()
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        set_random_state(random)


def _right(
    model: Module, split: Split, transform: Callable[[Tensor], Tensor], device: torch.device
) -> npt.NDArray[np.int64]:
    """(2,) right answers among all classes, and among those of the experience."""
    right = np.zeros(2, np.int64)
    for start in range(0, len(split), _BATCH):
        logits = model(transform(split.x[start : start + _BATCH].to(device)))
        y = split.y[start : start + _BATCH].to(device)
        right += [count_right(logits, y), count_right(logits, y, among=split.classes)]
    return right
