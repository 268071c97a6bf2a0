"""Digits as Avalanche benchmarks of both families, and small models."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

CLASSES = 10
EXPERIENCES = 5


def _digits():
    digits = load_digits()
    x = torch.tensor(digits.images[:600, None] * 15).to(torch.uint8)
    return x, torch.tensor(digits.target[:600])


class ToFloat:
    """A transform that works on one sample and on a batch."""

    batched = True

    def __call__(self, x):
        return x.float() / 255


def tensor_set(x, y):
    data = TensorDataset(x, y)
    data.targets = y.tolist()
    return data


def new_family(transform=None, x=None, y=None, experiences=EXPERIENCES):
    """Two-field mini-batches, `DatasetExperience`."""
    from avalanche.benchmarks.scenarios.supervised import class_incremental_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset

    if x is None:
        x, y = _digits()
    groups = {"train": (transform, None), "eval": (transform, None)}
    train, test = (
        as_classification_dataset(tensor_set(x, y), transform_groups=groups) for _ in range(2)
    )
    return class_incremental_benchmark(
        {"train": train, "test": test}, num_experiences=experiences, seed=0
    )


def old_family(transform=None, task_labels=False, x=None, y=None):
    """Three-field mini-batches, `NCExperience`."""
    from avalanche.benchmarks import nc_benchmark

    if x is None:
        x, y = _digits()
    return nc_benchmark(
        tensor_set(x, y),
        tensor_set(x, y),
        n_experiences=EXPERIENCES,
        task_labels=task_labels,
        seed=0,
        train_transform=transform,
        eval_transform=transform,
    )


@pytest.fixture(scope="session")
def digits():
    return _digits()


@pytest.fixture(scope="session", params=["new", "old"])
def stream(request):
    """The training stream of either family, with a transform that can be batched."""
    family = new_family if request.param == "new" else old_family
    return family(ToFloat()).train_stream


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No loggers specified")
        yield


@pytest.fixture
def helpers():
    return Helpers


class Helpers:
    """Builders for tests."""

    ToFloat = ToFloat
    new_family = staticmethod(new_family)
    old_family = staticmethod(old_family)
    tensor_set = staticmethod(tensor_set)

    @staticmethod
    def model(outputs=CLASSES, seed=0):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))

    @staticmethod
    def sgd(model, lr=0.1, momentum=0.0):
        return torch.optim.SGD(model.parameters(), lr, momentum=momentum)

    @staticmethod
    def same(a, b):
        """Whether two outcomes of `stop_and_go` are equal bit for bit."""
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(Helpers.same(a[k], b[k]) for k in a)
        if isinstance(a, list | tuple):
            return len(a) == len(b) and all(map(Helpers.same, a, b))
        if isinstance(a, torch.Tensor):
            return a.dtype == b.dtype and torch.equal(a, b)
        if isinstance(a, np.ndarray):
            return a.dtype == b.dtype and np.array_equal(a, b)
        return a == b

    @staticmethod
    def naive(plugins, model=None, **options):
        from avalanche.training.supervised import Naive

        model = Helpers.model() if model is None else model
        options = {"train_mb_size": 32, "evaluator": None, **options}
        return Naive(model=model, optimizer=Helpers.sgd(model), plugins=plugins, **options)

    @staticmethod
    def stop_and_go(make, folder, stream, *, kill, every=1):
        """Train whole, and killed behind step `kill` and resumed; (outcome, outcome) to compare.

        `make(storage, plugins)` builds the strategy, the same every time; in sync mode.
        """
        from carousel.strategies import RunCheckpoint

        def run(name, *more):
            checkpoint = RunCheckpoint(folder / name / "checkpoints", every=every)
            strategy = make(folder / name / "db", [checkpoint, *more])
            torch.manual_seed(1)
            position = checkpoint.restore(strategy, stream)
            try:
                for experience in stream[position.experiences if position else 0 :]:
                    strategy.train(experience, eval_streams=[])
                return _outcome(strategy)
            except _Killed:
                return None
            finally:
                strategy.memory.close()

        whole = run("whole")
        assert run("parts", _kill_behind(kill)) is None
        return whole, run("parts")


class _Killed(Exception):
    """The process is gone."""


def _kill_behind(step):
    from avalanche.training.plugins import SupervisedPlugin

    class Kill(SupervisedPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            if strategy.clock.train_iterations + 1 == step:
                raise _Killed

    return Kill()


def _outcome(strategy):
    """Weights, every field of every slot and record, and what became of the swaps."""
    carousel = strategy.memory.carousel
    slots = carousel.residents()
    ids = carousel.tier.entries().ids
    records = {r.id: [r.label, r.task, r.fields] for r in carousel.tier.get_many(ids)}
    return {
        "weights": {k: v.clone() for k, v in strategy.model.state_dict().items()},
        "optimizer": strategy.optimizer.state_dict()["state"],
        "slots": [slots.slots, slots.ids, slots.labels, slots.tasks],
        "fields": carousel.peek(slots.slots),
        "records": [records[id_] for id_ in sorted(records)],
        "swaps": carousel.stats().swaps,
    }
