"""A run that was stopped and resumed is the run that was not, bit for bit in sync mode."""

import threading

import numpy as np
import pytest
import torch
from avalanche.models import IncrementalClassifier, MTSimpleMLP
from avalanche.training.plugins import LRSchedulerPlugin, SupervisedPlugin
from torch import nn

from carousel.errors import BadInputError, CheckpointError
from carousel.memory.checkpoint import load_checkpoint
from carousel.strategies import CarMPlugin, RunCheckpoint, make_strategy
from carousel.strategies.checkpoint import Position
from carousel.strategies.milestones import StepSchedule


class Killed(Exception):
    """The process is gone."""


class Kill(SupervisedPlugin):
    """Ends the run behind a step, after the checkpoint had its turn."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def after_training_iteration(self, strategy, **kwargs):
        if strategy.clock.train_iterations + 1 == self.at:
            raise Killed


class Ids(SupervisedPlugin):
    """The samples in the memory after every step."""

    def __init__(self):
        super().__init__()
        self.memory = None
        self.ids = {}

    def after_training_iteration(self, strategy, **kwargs):
        if self.memory is not None:
            slots = self.memory.carousel.state_dict()["core"]["slots"]
            self.ids[strategy.clock.train_iterations + 1] = slots["ids"].tolist()


def dropout_model(helpers):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(32, 10),
    )  # fmt: skip


def growing_model(helpers):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), IncrementalClassifier(32, 2)
    )


class Run:
    """One process's part of a run: the same every time it is built."""

    def __init__(
        self, helpers, folder, *, kind="er", model=dropout_model, every=None, kill=None, **options
    ):
        self.ids = Ids()
        self.checkpoint = RunCheckpoint(folder / "checkpoints", every=every)
        self.model = model(helpers)
        optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        schedule = LRSchedulerPlugin(
            torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9),
            reset_scheduler=False,
            reset_lr=False,
            step_granularity="iteration",
        )
        plugins = [self.ids, schedule, self.checkpoint, *([Kill(kill)] if kill else [])]
        if kind == "naive+plugin":
            self.memory = CarMPlugin(40, folder / "db", sync=True, seed=0, **options)
            self.strategy = helpers.naive(
                [self.memory, *plugins], model=self.model, train_mb_size=16, train_epochs=2
            )
            self.strategy.optimizer = optimizer
        else:
            common = {"storage": folder / "db", "memory_size": 40} if kind == "er" else {}
            self.strategy = make_strategy(
                kind,
                options,
                model=self.model,
                optimizer=optimizer,
                sync=True,
                train_mb_size=16,
                train_epochs=2,
                plugins=plugins,
                **common,
            )
            self.memory = self.strategy.memory
        self.ids.memory = self.memory

    def go(self, stream, start=None):
        """Train what is left; True if the run came to its end."""
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002 - the global one is what is restored
        position = self.checkpoint.restore(self.strategy, stream)
        self.start = position
        try:
            for experience in stream[position.experiences if position else 0 :]:
                self.strategy.train(experience, eval_streams=[])
                self.strategy.eval(stream)
        except Killed:
            return False
        finally:
            if self.memory is not None:
                self.swaps = self.memory.carousel.stats().swaps
                self.memory.close()
        return True

    def outcome(self):
        state = self.strategy.optimizer.state_dict()
        momentum = [s["momentum_buffer"] for s in state["state"].values()]
        lr = torch.tensor(state["param_groups"][0]["lr"])
        return [*self.model.state_dict().values(), *momentum, lr]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def stop_and_go(helpers, tmp_path, stream, kills, **options):
    whole = Run(helpers, tmp_path / "whole", **options)
    assert whole.go(stream)
    ids = {}
    starts = []
    for kill in [*kills, None]:
        part = Run(helpers, tmp_path / "parts", kill=kill, **options)
        assert part.go(stream) == (kill is None)
        starts.append(part.start)
        ids.update(part.ids.ids)
    assert ids == whole.ids.ids
    assert same(part.outcome(), whole.outcome())
    assert part.strategy.clock.__dict__ == whole.strategy.clock.__dict__
    assert not [t for t in threading.enumerate() if t.name.startswith("carousel")]
    if whole.memory is not None:
        assert part.swaps == whole.swaps
        assert whole.swaps.done > 0
    return starts


@pytest.mark.parametrize(
    "options", [{}, {"fast_loader": False}, {"replay": "mixed", "model": growing_model}]
)
def test_a_plain_strategy_resumes_at_the_boundary(helpers, tmp_path, stream, options):
    """Naive of Avalanche with the plugin, killed twice; all of the experience is done again."""
    starts = stop_and_go(helpers, tmp_path, stream[:4], [20, 40], kind="naive+plugin", **options)
    assert starts[0] is None
    assert all(not start.within and start.experiences > 0 for start in starts[1:])


def test_any_step_can_be_the_last(helpers, tmp_path):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    starts = stop_and_go(helpers, tmp_path, stream[:3], [3, 19, 34], every=1, loss="bce")
    assert starts[1] == Position(0, 0, 3)
    assert all(start.within for start in starts[1:])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("er", {"replay": "mixed", "model": growing_model}),
        ("er", {"update": "batch", "admission": "reservoir"}),
        ("naive", {}),
        ("joint", {}),
    ],
)
def test_every_strategy_resumes_within_an_experience(helpers, tmp_path, kind, options):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    starts = stop_and_go(helpers, tmp_path, stream[:2], [23], kind=kind, every=4, **options)
    assert starts[1].within


@pytest.mark.parametrize("every", [1, None])
def test_growing_heads_resume(helpers, tmp_path, stream, every):
    stop_and_go(helpers, tmp_path, stream[:4], [20, 37], model=growing_model, every=every)


def test_multi_head_models_resume(helpers, tmp_path):
    def model(helpers):
        torch.manual_seed(0)
        return MTSimpleMLP(input_size=64, hidden_size=16)

    stream = helpers.old_family(helpers.ToFloat(), task_labels=True).train_stream
    stop_and_go(helpers, tmp_path, stream[:4], [20, 37], model=model, every=1)


def test_steps_between_checkpoints_are_done_again(helpers, tmp_path, stream):
    starts = stop_and_go(helpers, tmp_path, stream[:3], [13, 29], every=5)
    assert starts[1] in (Position(0, 1, 2), Position(0, 0, 10), Position(0, 1, 1))


def test_asked_to_stop(helpers, tmp_path, stream):
    class Signal:
        asked = False

        def obey(self):
            if self.asked:
                raise KeyboardInterrupt

    run = Run(helpers, tmp_path, every=1000)
    run.checkpoint._stop = signal = Signal()

    class Ask(SupervisedPlugin):
        def before_forward(self, strategy, **kwargs):
            signal.asked = strategy.clock.train_iterations == 4

    run.strategy.plugins.insert(0, Ask())
    with pytest.raises(KeyboardInterrupt):
        run.go(stream)
    again = Run(helpers, tmp_path)
    assert again.go(stream[:1])
    assert again.start == Position(0, 0, 5)


def test_extra_values_travel(helpers, tmp_path, stream):
    run = Run(helpers, tmp_path)
    run.checkpoint.extra = {"rows": [[0.5, 0.25]], "weights": torch.ones(2)}
    run.go(stream[:1])
    again = Run(helpers, tmp_path)
    again.checkpoint.restore(again.strategy, stream[:1])
    assert again.checkpoint.extra["rows"] == [[0.5, 0.25]]
    assert torch.equal(again.checkpoint.extra["weights"], torch.ones(2))
    again.memory.close()


def test_files_hold_data_only_and_two_stay(helpers, tmp_path, stream):
    Run(helpers, tmp_path, every=3).go(stream[:2])
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert len(files) == 2
    state = load_checkpoint(files[-1])  # refuses anything but plain values and tensors
    assert state["position"] == [2, 0, 0]


def test_a_torn_newest_falls_back(helpers, tmp_path, stream):
    Run(helpers, tmp_path).go(stream[:3])
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    again = Run(helpers, tmp_path)
    assert again.checkpoint.restore(again.strategy, stream).experiences == 2
    again.memory.close()


class TestMisfits:
    """Checkpoints of another run are refused with a typed error."""

    def saved(self, helpers, folder, stream, **options):
        Run(helpers, folder, **options).go(stream[:1])

    def test_another_model(self, helpers, tmp_path, stream):
        self.saved(helpers, tmp_path, stream, model=growing_model)
        other = Run(helpers, tmp_path)
        with pytest.raises(CheckpointError, match="does not fit"):
            other.checkpoint.restore(other.strategy, stream)
        other.memory.close()

    def test_another_strategy(self, helpers, tmp_path, stream):
        self.saved(helpers, tmp_path, stream)
        other = Run(helpers, tmp_path, kind="naive")
        with pytest.raises(CheckpointError, match="CarMPlugin"):
            other.checkpoint.restore(other.strategy, stream)

    def test_damage_everywhere(self, helpers, tmp_path, stream):
        self.saved(helpers, tmp_path, stream)
        for file in (tmp_path / "checkpoints").iterdir():
            file.write_bytes(b"nonsense")
        other = Run(helpers, tmp_path)
        with pytest.raises(CheckpointError, match="damaged"):
            other.checkpoint.restore(other.strategy, stream)
        other.memory.close()

    def test_within_an_experience_without_the_loader(self, helpers, tmp_path, stream):
        run = Run(helpers, tmp_path, kind="naive+plugin", every=1, kill=3)
        assert not run.go(stream)
        other = Run(helpers, tmp_path, kind="naive+plugin", fast_loader=False)
        with pytest.raises(CheckpointError, match="within an experience"):
            other.go(stream)

    def test_every(self, tmp_path):
        with pytest.raises(BadInputError, match="every is 0"):
            RunCheckpoint(tmp_path, every=0)


def test_without_a_checkpoint_there_is_nothing_to_restore(helpers, tmp_path, stream):
    run = Run(helpers, tmp_path)
    assert run.checkpoint.restore(run.strategy, stream) is None
    run.memory.close()


@pytest.mark.parametrize("kind", ["gdumb", "rm", "er"])
def test_an_experience_that_broke_off_is_not_gone_on_with(helpers, tmp_path, kind):
    """It is trained again from its start, and stopped before the next checkpoint."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream

    class Break(SupervisedPlugin):
        def after_training_iteration(self, strategy, **_):
            if strategy.clock.train_iterations + 1 == at:
                raise ZeroDivisionError

    class Note(SupervisedPlugin):
        def before_training_epoch(self, strategy, **_):
            seen.append((strategy.optimizer.param_groups[0]["lr"], len(strategy.optimizer.state)))
            residents.append(set(strategy.memory.carousel.residents().labels.tolist()))
            if stopping:
                raise KeyboardInterrupt

    def build(*plugins):
        options = {"copies": 2} if kind == "rm" else {}
        model = helpers.model()
        return make_strategy(
            kind, options, model=model, optimizer=helpers.sgd(model, momentum=0.9),
            storage=tmp_path / "db", memory_size=20, sync=True, train_epochs=3,
            train_mb_size=16, plugins=[StepSchedule((1,), 0.5)] * (kind == "er") + [*plugins],
        )  # fmt: skip

    seen, residents, stopping, at = [], [], False, -1
    strategy = build(RunCheckpoint(tmp_path / "checkpoints"), Break(), Note())
    strategy.train(stream[0], eval_streams=[])
    steps = 9 if kind == "rm" else 3  # rm: while it trains on the memory
    at = strategy.clock.train_iterations + (steps if kind != "er" else 9)
    with pytest.raises(ZeroDivisionError):
        strategy.train(stream[1], eval_streams=[])
    stopping = True
    with pytest.raises(KeyboardInterrupt):
        strategy.train(stream[1], eval_streams=[])
    strategy.memory.close()
    expected = seen[-1], residents[-1]
    checkpoint = RunCheckpoint(tmp_path / "checkpoints")
    strategy = build(checkpoint, Note())
    position = checkpoint.restore(strategy, stream)
    assert (position.experiences, position.within) == (1, False)
    with pytest.raises(KeyboardInterrupt):
        strategy.train(stream[1], eval_streams=[])
    assert (seen[-1], residents[-1]) == expected
    stopping = False
    for experience in stream[1:3]:
        strategy.train(experience, eval_streams=[])
    strategy.memory.close()
