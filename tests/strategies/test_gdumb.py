"""GDumb: a greedy balanced memory before training, and a model from scratch on it alone."""

import numpy as np
import pytest
import torch
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import SupervisedPlugin
from torch import nn

from carousel.models import make_model
from carousel.storage import LMDBTier, MemoryTier
from carousel.strategies import CarMPlugin, GDumb, make_strategy


def build(helpers, storage=None, *plugins, memory_size=20, swap=True, model=None, **options):
    memory = CarMPlugin(memory_size, storage or MemoryTier(), sync=True, seed=0, swap=swap)
    model = model or helpers.model()
    options = {"train_mb_size": 8, "train_epochs": 2, **options}
    optimizer = helpers.sgd(model, 0.05, momentum=0.9)
    return GDumb(model=model, optimizer=optimizer, memory=memory, plugins=plugins, **options)


class Rows(SupervisedPlugin):
    """Who is in the memory when training begins, and what each step trains on."""

    def __init__(self):
        super().__init__()
        self.at_start, self.steps = [], []

    def before_training_epoch(self, strategy, **_):
        if strategy.clock.train_exp_epochs == 0:
            self.at_start.append(strategy.memory.carousel.residents().labels)

    def before_forward(self, strategy, **_):
        memory = strategy.memory
        slots = memory.carousel.residents()
        assert memory.stream_rows == 0
        assert set(strategy.mb_y.tolist()) <= set(slots.labels.tolist())
        self.steps.append(len(strategy.mb_y))


def test_the_memory_is_filled_before_training_and_alone_trained_on(helpers, stream):
    rows = Rows()
    strategy = build(helpers, None, rows)
    for experience in stream:
        strategy.train(experience, eval_streams=[])
    assert rows.steps == [8, 8, 4] * 2 * len(stream)
    classes = [len(set(labels.tolist())) for labels in rows.at_start]
    assert classes == [2, 4, 6, 8, 10]
    for labels in rows.at_start:
        counts = np.bincount(labels)[np.unique(labels)]
        assert counts.sum() == 20
        assert counts.max() - counts.min() <= 1
    assert strategy.memory.carousel.stats().storage.records == 600
    strategy.memory.close()


def growing_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), IncrementalClassifier(32, 2)
    )


@pytest.mark.parametrize("grows", [False, True])
def test_every_experience_starts_with_the_first_weights(helpers, stream, grows):
    model = growing_model() if grows else helpers.model()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    starts = []

    class Start(SupervisedPlugin):
        def before_training_epoch(self, strategy, **_):
            if strategy.clock.train_exp_epochs == 0:
                assert strategy.model is model
                starts.append({n: v.clone() for n, v in model.state_dict().items()})

    strategy = build(helpers, None, Start(), model=model)
    for experience in stream[:3]:
        strategy.train(experience, eval_streams=[])
        strategy.eval(stream[:5])  # a growing head grows for classes that it is asked about
        assert not torch.equal(model[1].weight, first["1.weight"])
    for start in starts:
        for name, value in first.items():
            if "active_units" not in name:
                assert torch.equal(start[name][: len(value)] if value.ndim else start[name], value)
    if grows:
        assert len(starts[2]["4.classifier.weight"]) == 10
    strategy.memory.close()


def test_what_was_trained_before_does_not_matter(helpers, digits):
    """Other epochs on the first experience, the same memory: the same model, bit for bit."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    outcome = []
    for epochs in (1, 5):
        strategy = build(helpers, swap=False, train_epochs=epochs, cutmix_p=0)
        strategy.train(stream[0], eval_streams=[])
        strategy.train_epochs = 4
        strategy.train(stream[1], eval_streams=[])
        outcome.append([value.clone() for value in strategy.model.state_dict().values()])
        strategy.memory.close()
    assert all(torch.equal(a, b) for a, b in zip(*outcome, strict=True))


def test_the_head_learns(helpers, stream):
    strategy = build(helpers)
    head = strategy.model[-1]
    before = head.weight.detach().clone()
    strategy.train(stream[0], eval_streams=[])
    assert (head.weight != before).any(1).all()
    strategy.memory.close()


@pytest.mark.parametrize(("kill", "grows"), [(2, True), (5, False), (8, True), (11, True)])
def test_resumed_is_as_if_never_stopped(helpers, tmp_path, kill, grows):
    """Six steps an experience; killed in its first and second pass, of either experience."""

    def make(storage, plugins):
        return build(helpers, storage, *plugins, model=growing_model() if grows else None)

    stream = helpers.new_family(helpers.ToFloat()).train_stream[:2]
    whole, parts = helpers.stop_and_go(make, tmp_path, stream, kill=kill)
    assert helpers.same(whole, parts)
    assert whole["swaps"].done > 0


def test_a_class_that_returns(helpers):
    """The same classes in both experiences: the memory stays balanced, nothing is held twice."""
    x, y = torch.randint(0, 255, (60, 1, 8, 8), dtype=torch.uint8), torch.arange(60) % 3
    strategy = build(helpers, memory_size=12)
    for part in (slice(0, 30), slice(30, 60)):
        stream = helpers.new_family(helpers.ToFloat(), x=x[part], y=y[part], experiences=1)
        strategy.memory.run = f"part {part.start}"
        strategy.train(stream.train_stream[0], eval_streams=[])
        residents = strategy.memory.carousel.residents()
        assert np.bincount(residents.labels).tolist() == [4, 4, 4]
        assert len(set(residents.ids.tolist())) == 12
    strategy.memory.close()


def test_in_the_background(helpers, tmp_path, stream):
    """Without sync mode the stream is saved while the memory is trained on already."""
    with LMDBTier(tmp_path) as tier:
        memory = CarMPlugin(20, tier, seed=0)
        model = helpers.model()
        gdumb = GDumb(
            model=model, optimizer=helpers.sgd(model), memory=memory, train_mb_size=8,
            train_epochs=8,
        )  # fmt: skip
        for experience in stream:
            gdumb.train(experience, eval_streams=[])
        stats = memory.carousel.stats()
        memory.close()
    assert stats.storage.records == 600
    assert stats.swaps.done > 0.5 * stats.swaps.requested > 0


def test_swapping_shows_more_and_helps():
    """Split-digits, two slots a class, two seeds: more samples met, and a better model."""
    from carousel.data import load_stream, to_benchmark

    scores = {True: [], False: []}
    for seed in range(2):
        stream = load_stream("split-digits", seed=seed)
        for swap in (True, False):
            model = make_model("mlp", stream.input_shape, stream.n_classes, seed=seed)
            optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
            gdumb = make_strategy(
                "gdumb", model=model, optimizer=optimizer, storage=MemoryTier(), memory_size=20,
                swap=swap, sync=True, seed=seed, train_mb_size=16, train_epochs=16,
            )  # fmt: skip
            for experience in to_benchmark(stream).train_stream:
                gdumb.train(experience, eval_streams=[])
            met = gdumb.memory.carousel.stats().distinct_samples_replayed
            gdumb.memory.close()
            assert (met > 200) == swap
            model.eval()
            right = [model(stream.transform(t.x)).argmax(1) == t.y for t in stream.test]
            scores[swap].append(torch.cat(right).float().mean().item())
    assert min(scores[False]) > 0.3
    assert np.mean(scores[True]) > np.mean(scores[False]) + 0.05
