"""Rainbow Memory: which samples it keeps, when, and that a stopped run goes on."""

import numpy as np
import pytest
import torch
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import SupervisedPlugin
from torch import nn

from carousel.errors import BadInputError
from carousel.models import make_model
from carousel.storage import LMDBTier, MemoryTier
from carousel.strategies import CarMPlugin, RainbowMemory, make_strategy
from carousel.strategies.candidates import Candidates
from carousel.strategies.stride import stride_rows


def build(helpers, storage=None, *plugins, memory_size=20, swap=True, model=None, **options):
    memory = CarMPlugin(memory_size, storage or MemoryTier(), sync=True, seed=0, swap=swap)
    model = model or helpers.model()
    options = {"train_mb_size": 8, "train_epochs": 3, "copies": 4, **options}
    optimizer = helpers.sgd(model, 0.05, momentum=0.9)
    return RainbowMemory(
        model=model, optimizer=optimizer, memory=memory, plugins=plugins, **options
    )


class Log(SupervisedPlugin):
    """Rows of stream and memory in each step, with epoch and experience; swaps and residents."""

    def __init__(self):
        super().__init__()
        self.steps, self.epochs = [], []

    def before_forward(self, strategy, **_):
        clock, memory = strategy.clock, strategy.memory
        place = (clock.train_exp_counter, clock.train_exp_epochs)
        self.steps.append((*place, memory.stream_rows, len(strategy.mb_y) - memory.stream_rows))

    def after_training_epoch(self, strategy, **_):
        carousel = strategy.memory.carousel
        self.epochs.append((carousel.residents(), carousel.stats().swaps.requested))


def test_first_the_stream_then_the_memory(helpers, stream):
    log = Log()
    strategy = build(helpers, None, log)
    for experience in stream[:2]:
        strategy.train(experience, eval_streams=[])
    strategy.memory.close()
    for number in (0, 1):
        first = [step for step in log.steps if step[:2] == (number, 0)]
        assert sum(step[2] for step in first) == len(stream[number].dataset)
        assert {step[3] for step in first} == ({8} if number else {0})
        for epoch in (1, 2):
            later = [step[2:] for step in log.steps if step[:2] == (number, epoch)]
            assert later == [(0, 8), (0, 8), (0, 4)]
    # the memory changes behind the first epoch, and then by swaps only, which there are none of
    # while the stream is trained on
    requested = [requested for _, requested in log.epochs]
    assert requested[0] == 0
    assert requested[3] == requested[2] > requested[1] > 0
    for residents, _ in log.epochs:
        assert np.bincount(residents.labels).sum() == 20
    for start in (0, 3):
        kept = log.epochs[start][0]
        assert [e[0].labels.tolist() for e in log.epochs[start : start + 3]] == (
            [kept.labels.tolist()] * 3
        )


class AsLabelled(nn.Module):
    """Says the class that the first pixel names; a parameter, so that it can be optimized."""

    def __init__(self, classes=10):
        super().__init__()
        self.classes = classes
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        named = (x[:, 0, 0, 0] * 255).round().long().clamp(0, self.classes - 1)
        return self.scale * nn.functional.one_hot(named, self.classes).float()


def doubts(helpers):
    """Sample i of a class, pixel (0, 1): of 4 copies the first i % 4 are taken for class 9."""
    x = torch.zeros(48, 1, 8, 8, dtype=torch.uint8)
    y = torch.arange(48) % 6
    x[:, 0, 0, 0] = y
    x[:, 0, 0, 1] = torch.arange(48) // 6  # 0..7 within its class
    x[:, 0, 0, 2] = torch.arange(48)
    calls = []

    def perturb(batch, rng):
        copy = batch.clone()
        number = len(calls) % 4
        calls.append(len(batch))
        copy[:, 0, 0, 0][batch[:, 0, 0, 1] % 4 > number] = 9
        return copy

    stream = helpers.new_family(helpers.ToFloat(), x=x, y=y, experiences=2).train_stream
    return stream, perturb, calls


def test_strides_by_hand(helpers):
    """Sample i has the uncertainty 0, 1/4, 2/4, 1/4 for i % 4 = 0, 1, 2, 3, two of each a class.

    Six classes in 24 slots are 4 places for the 8 samples of a new class, every second: both
    ends of what is sorted are there, so one or two of the four with 1/4, and so on.
    """
    stream, perturb, calls = doubts(helpers)
    strategy = build(
        helpers, model=AsLabelled(), memory_size=24, perturb=perturb, train_epochs=1, swap=False
    )
    strategy.train(stream[0], eval_streams=[])
    assert calls == []  # the first choice is random
    first = strategy.memory.carousel.residents()
    classes = np.unique(first.labels)
    assert np.bincount(first.labels)[classes].tolist() == [8, 8, 8]
    strategy.train(stream[1], eval_streams=[])
    assert calls == [24] * 4 + [24] * 4
    residents = strategy.memory.carousel.residents()
    assert np.bincount(residents.labels).tolist() == [4] * 6
    kept = strategy.memory.carousel.peek(residents.slots)["x"][:, 0, 0, 1].numpy()
    unsure = np.array([0, 1, 2, 1])[kept % 4]
    for label in range(6):
        # places 0, 2, 4, 6 of 0 0 1 1 1 1 2 2
        assert sorted(unsure[residents.labels == label]) == [0, 1, 1, 2]
    strategy.memory.close()


def test_the_candidates_are_everyone_once(helpers, stream):
    found = []

    class Look(SupervisedPlugin):
        def after_training_epoch(self, strategy, **_):
            found.append(Candidates.of(strategy.memory))

    strategy = build(helpers, None, Look(), train_epochs=1)
    for experience in (stream[0], stream[1]):
        strategy.train(experience, eval_streams=[])
    # called after the choice: who was chosen is counted among the memory, not twice
    sizes = [len(stream[0].dataset), len(stream[1].dataset)]
    for number, candidates in enumerate(found):
        assert len(set(candidates.ids.tolist())) == len(candidates)
        old = number and (candidates.ids < strategy.memory.first_id).sum()
        assert len(candidates) == sizes[number] + old
    last = found[1]
    x = torch.cat([x for x, _ in last.batches()])
    stored = strategy.memory.carousel.tier.get_many(last.ids)
    assert len(x) == len(last)
    assert all(
        torch.equal(row, torch.as_tensor(r.fields["x"])) for row, r in zip(x, stored, strict=True)
    )
    strategy.memory.close()


def test_the_head_that_judges_knows_the_new_classes(helpers, stream):
    """The model is asked in evaluation mode, after an epoch, with an output for every class."""
    modes, outputs = [], []
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), IncrementalClassifier(32, 2)
    )
    judged = RainbowMemory.predict

    class Looks(RainbowMemory):
        def predict(self, x, tasks):
            logits = judged(self, x, tasks)
            modes.append(self.model.training)
            outputs.append(logits.shape[1])
            return logits

    memory = CarMPlugin(20, MemoryTier(), sync=True, seed=0)
    strategy = Looks(
        model=model, optimizer=helpers.sgd(model), memory=memory, train_epochs=1, copies=2
    )
    for experience in stream[:2]:
        strategy.train(experience, eval_streams=[])
    assert set(modes) == {False}
    assert min(outputs) > max(stream[1].classes_in_this_experience)
    assert model.training
    head = model[3].classifier.weight
    before = head.detach().clone()
    strategy.train(stream[1], eval_streams=[])
    assert not torch.equal(head, before)
    memory.close()


@pytest.mark.parametrize("kill", [3, 8, 9, 11, 20, 22])
def test_resumed_is_as_if_never_stopped(helpers, tmp_path, kill):
    """Killed within the stream's epoch, right before the choice, and in the memory's epochs."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream[:2]
    steps = [-(-len(experience.dataset) // 16) for experience in stream]
    assert steps == [8, 8]  # and two of each of two epochs on the memory

    def make(storage, plugins):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.3), IncrementalClassifier(32, 2)
        )
        augment = {"augment": lambda x, rng: x * rng.random()}
        return build(helpers, storage, *plugins, model=model, train_mb_size=16, **augment)

    whole, parts = helpers.stop_and_go(make, tmp_path, stream, kill=kill)
    assert helpers.same(whole, parts)
    assert whole["swaps"].done > 0


@pytest.mark.parametrize("size", [7, 20, 61])
def test_budget_and_balance(helpers, stream, size):
    strategy = build(helpers, memory_size=size, train_epochs=2)
    seen = 0
    for experience in stream:
        strategy.train(experience, eval_streams=[])
        seen += len(set(experience.classes_in_this_experience))
        residents = strategy.memory.carousel.residents()
        counts = np.bincount(residents.labels, minlength=10)
        assert len(residents) == size
        assert (counts > 0).sum() <= seen
        assert np.sort(counts)[-seen:].min() >= min(size // seen, 20)
        assert len(set(residents.ids.tolist())) == size
    assert strategy.memory.carousel.stats().storage.records == 600
    strategy.memory.close()


def test_fewer_samples_than_slots(helpers):
    x, y = torch.randint(0, 255, (12, 1, 8, 8), dtype=torch.uint8), torch.arange(12) % 4
    stream = helpers.new_family(helpers.ToFloat(), x=x, y=y, experiences=2).train_stream
    strategy = build(helpers, memory_size=30)
    for count, experience in zip((6, 12), stream, strict=True):
        strategy.train(experience, eval_streams=[])
        assert strategy.memory.carousel.filled == count
    strategy.memory.close()


class TestBadInput:
    def test_data_that_are_no_images_are_refused_before_anything_is_saved(self, helpers):
        x, y = torch.rand(40, 5, 8, 8), torch.arange(40) % 4
        stream = helpers.new_family(x=x, y=y, experiences=2).train_stream
        strategy = build(helpers, model=nn.Sequential(nn.Flatten(), nn.Linear(320, 4)))
        with pytest.raises(BadInputError, match=r"no images.*perturb="):
            strategy.train(stream[0], eval_streams=[])
        assert strategy.memory.carousel.schema is None
        strategy.memory.close()

    def test_with_perturb_they_are_taken(self, helpers):
        x, y = torch.rand(40, 5, 8, 8), torch.arange(40) % 4
        stream = helpers.new_family(x=x, y=y, experiences=2).train_stream
        model = nn.Sequential(nn.Flatten(), nn.Linear(320, 4))

        def noise(x, rng):
            return x + 0.1 * torch.from_numpy(rng.standard_normal(x.shape)).float()

        strategy = build(helpers, model=model, perturb=noise)
        for experience in stream:
            strategy.train(experience, eval_streams=[])
        assert strategy.memory.carousel.filled == 20
        strategy.memory.close()

    def test_options(self, helpers):
        with pytest.raises(BadInputError, match="copies is 1"):
            build(helpers, copies=1)
        memory = CarMPlugin(20, MemoryTier(), admission="reservoir")
        model = helpers.model()
        with memory, pytest.raises(BadInputError, match="admission is 'reservoir'"):
            RainbowMemory(model=model, optimizer=helpers.sgd(model), memory=memory)


def test_in_the_background(helpers, tmp_path, stream):
    with LMDBTier(tmp_path) as tier:
        memory = CarMPlugin(20, tier, seed=0)
        model = helpers.model()
        strategy = RainbowMemory(
            model=model, optimizer=helpers.sgd(model), memory=memory, train_epochs=6, copies=3
        )
        for experience in stream:
            strategy.train(experience, eval_streams=[])
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
            optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
            rm = make_strategy(
                "rm", {"copies": 4}, model=model, optimizer=optimizer, storage=MemoryTier(),
                memory_size=20, swap=swap, sync=True, seed=seed, train_mb_size=16, train_epochs=33,
            )  # fmt: skip
            for experience in to_benchmark(stream).train_stream:
                rm.train(experience, eval_streams=[])
            met = rm.memory.carousel.stats().distinct_samples_replayed
            rm.memory.close()
            assert (met > 200) == swap
            model.eval()
            right = [model(stream.transform(t.x)).argmax(1) == t.y for t in stream.test]
            scores[swap].append(torch.cat(right).float().mean().item())
    assert min(scores[False]) > 0.3
    assert np.mean(scores[True]) > np.mean(scores[False]) + 0.03


def test_the_choice_is_the_rule_on_what_was_measured(helpers, stream):
    """What is in the memory behind the first epoch is `stride_rows` of the candidates."""
    measured = []

    class Looks(RainbowMemory):
        def _uncertainty(self, candidates, rng):
            unsure = super()._uncertainty(candidates, rng)
            measured.append((candidates, unsure))
            return unsure

    memory = CarMPlugin(20, MemoryTier(), sync=True, seed=0)
    model = helpers.model()
    strategy = Looks(model=model, optimizer=helpers.sgd(model), memory=memory, train_epochs=1)
    for experience in stream[:2]:
        strategy.train(experience, eval_streams=[])
    (candidates, unsure) = measured[0]
    kept = memory.carousel.residents()
    assert unsure.min() == 0
    assert unsure.max() > 0.2
    assert set(np.round(unsure * 12).astype(int)) <= set(range(12))
    for label in np.unique(kept.labels):
        rows = candidates.labels == label
        ranked = np.sort(unsure[rows])[:: rows.sum() // 5][:5]
        mine = np.sort(unsure[np.isin(candidates.ids, kept.ids) & rows])
        assert mine.tolist() == ranked.tolist()
    again = stride_rows(unsure, candidates.labels, 20, np.random.default_rng(0))
    assert len(again) == len(kept)
    memory.close()
