"""Augmentation in training: of stream and memory alike, and never of what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin

from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.storage import LMDBTier, MemoryTier
from carousel.strategies import make_strategy
from carousel.strategies.checkpoint import RunCheckpoint
from carousel.strategies.milestones import StepSchedule


class Seen(SupervisedPlugin):
    """The samples that the model was trained on, and where the memory's rows were."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.batches = []
        self.stop_after = stop_after

    def before_backward(self, strategy, **_):
        memory = strategy.memory and strategy.memory.memory_rows
        self.batches.append((strategy.mb_x.clone(), memory))

    def after_training_iteration(self, strategy, **_):
        if len(self.batches) == self.stop_after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def stream():
    return load_stream("split-digits", experiences=2, limit=16)


def learner(name, storage, *plugins, options=None, epochs=3):
    torch.manual_seed(0)
    model = make_model("cnn", (1, 8, 8), 10, seed=0)
    return make_strategy(
        name,
        options,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        storage=storage,
        memory_size=20,
        sync=True,
        train_mb_size=16,
        train_epochs=epochs,
        plugins=plugins,
    )


def train(strategy, experiences):
    for experience in experiences:
        strategy.train(experience)


def shifts(raw):
    """Every crop of every raw sample, as bytes of model input."""
    wide = torch.nn.functional.pad(raw.float() / 255, (1, 1, 1, 1))
    windows = wide.unfold(2, 8, 1).unfold(3, 8, 1).permute(0, 2, 3, 1, 4, 5)
    return {window.numpy().tobytes() for window in windows.reshape(-1, 1, 8, 8)}


@pytest.mark.parametrize("replay", ["concat", "mixed"])
def test_stream_and_memory_are_shifted_and_the_store_is_not(stream, replay):
    seen = Seen()
    with MemoryTier() as tier:
        er = learner("er", tier, seen, options={"replay": replay})
        train(er, to_benchmark(stream, augment="crop").train_stream)
        kept, found = er.memory.carousel.read(np.arange(sum(len(part) for part in stream.train)))
        er.memory.close()
    assert found.all()
    assert torch.equal(kept["x"], torch.cat([part.x for part in stream.train]))
    allowed = shifts(kept["x"])
    plain = {x.numpy().tobytes() for x in kept["x"].float() / 255}
    of_memory = [x for batch, rows in seen.batches if rows is not None for x in batch[rows]]
    of_stream = [x for batch, rows in seen.batches if rows is None for x in batch]
    for samples in (of_memory, of_stream):
        given = [x.numpy().tobytes() for x in samples]
        assert set(given) <= allowed
        assert 0.05 < np.mean([x in plain for x in given]) < 0.25  # a ninth is not shifted


def test_a_strategy_without_memory_and_its_evaluation(stream):
    seen = Seen()
    naive = learner("naive", None, seen, epochs=1)
    benchmark = to_benchmark(stream, augment="crop")
    train(naive, benchmark.train_stream)
    given = {x.numpy().tobytes() for batch, _ in seen.batches for x in batch}
    raw = torch.cat([part.x for part in stream.train])
    assert given <= shifts(raw)
    assert len(given & {x.numpy().tobytes() for x in raw.float() / 255}) < len(raw) / 2

    class Tested(SupervisedPlugin):
        def after_eval_forward(self, strategy, **_):
            tested.append(strategy.mb_x.clone())

    tested = []
    naive.plugins.append(Tested())
    naive.eval(benchmark.test_stream[:1])
    assert torch.equal(torch.cat(tested), stream.transform(stream.test[0].x))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("icarl", {}),
        ("bic", {"bias_epochs": 2}),
        ("rm", {"cutmix_p": 0.0, "copies": 2}),
        ("der++", {"logits": "refresh"}),
    ],
)
def test_a_method_judges_samples_as_in_evaluation(stream, name, options):
    judged = []

    def note(module, args):
        if module is net and not module.training:
            judged.extend(x.numpy().tobytes() for x in args[0])

    with MemoryTier() as tier:
        strategy = learner(name, tier, options=options)
        net = getattr(strategy.model, "net", strategy.model)
        net.register_forward_pre_hook(note)
        if name == "rm":
            strategy.perturb = lambda x, rng: x
        train(strategy, to_benchmark(stream, augment="crop").train_stream)
        strategy.memory.close()
    raw = torch.cat([part.x for part in stream.train]).float() / 255
    assert judged
    assert set(judged) <= {x.numpy().tobytes() for x in raw}


@pytest.mark.parametrize("name", ["er", "der++"])
@pytest.mark.parametrize("steps", [3, 20])
def test_a_run_that_was_cut_within_an_experience_goes_on_bit_for_bit(stream, tmp_path, name, steps):
    experiences = list(to_benchmark(stream, augment="crop-flip").train_stream)
    whole = learner(name, tmp_path / "a", StepSchedule((1, 2), 0.3))
    train(whole, experiences)
    whole.memory.close()

    checkpoint = RunCheckpoint(tmp_path / "c", every=1)
    cut = learner(name, tmp_path / "b", StepSchedule((1, 2), 0.3), checkpoint, Seen(steps))
    with pytest.raises(KeyboardInterrupt):
        train(cut, experiences)
    cut.memory.close()

    checkpoint = RunCheckpoint(tmp_path / "c", every=1)
    resumed = learner(name, tmp_path / "b", StepSchedule((1, 2), 0.3), checkpoint)
    torch.manual_seed(99)
    position = checkpoint.restore(resumed, experiences)
    train(resumed, experiences[position.experiences :])
    resumed.memory.close()
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    with LMDBTier(tmp_path / "a") as one, LMDBTier(tmp_path / "b") as other:
        assert one.stats().records == other.stats().records
