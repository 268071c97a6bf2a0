"""iCaRL: losses by hand, exemplars within the budget, means, and runs that repeat bit for bit."""

import math

import numpy as np
import pytest
import torch
from avalanche.benchmarks import (
    benchmark_from_datasets,
    split_online_stream,
    with_classes_timeline,
)
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import SupervisedPlugin
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import CarMPlugin, RunCheckpoint
from carousel.strategies.herding import herd
from carousel.strategies.icarl import DistilledBCE, ICaRL
from carousel.strategies.nearest_mean import NEVER

LABELS = torch.tensor([0, 2])
LOGITS = torch.tensor([[0.5, -1.0, 0.0, 7.0], [2.0, 0.0, 1.0, -7.0]])
TEACHER = torch.tensor([[1.0, -2.0], [0.0, 3.0]])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def bce(logit, target):
    return -target * math.log(sigmoid(logit)) - (1 - target) * math.log(1 - sigmoid(logit))


def a_loss(weight="original"):
    """Classes 0 and 1 are old, 2 is new, nobody has seen 3."""
    loss = DistilledBCE(weight)
    loss.see_new(torch.tensor([0, 1]))
    assert not loss.distils
    loss.learned()
    loss.see_new(torch.tensor([2, 2]))
    return loss


def distilled():
    rows = [(LOGITS[row, c], TEACHER[row, c]) for row in (0, 1) for c in (0, 1)]
    return [bce(logit.item(), sigmoid(teacher.item())) for logit, teacher in rows]


def hard():
    rows = [(LOGITS[row, c], LABELS[row] == c) for row in (0, 1) for c in (0, 1, 2)]
    return [bce(logit.item(), float(hit)) for logit, hit in rows]


def test_original_loss_by_hand():
    """The teacher's word replaces the label of the old sample, too."""
    new = [bce(0.0, 0), bce(1.0, 1)]
    expected = (sum(distilled()) + sum(new)) / 6
    assert a_loss()(LOGITS, LABELS, TEACHER).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("weight", "share"), [(0.3, 0.3), ("incremental", 2 / 3), (1.0, 1.0)])
def test_weighted_loss_by_hand(weight, share):
    expected = share * np.mean(distilled()) + (1 - share) * np.mean(hard())
    assert a_loss(weight)(LOGITS, LABELS, TEACHER).item() == pytest.approx(expected, abs=1e-6)


def test_without_a_teacher_labels_count():
    assert a_loss()(LOGITS, LABELS).item() == pytest.approx(np.mean(hard()), abs=1e-6)
    assert not a_loss(0).distils


def test_a_class_that_comes_back_is_new():
    loss = a_loss()
    loss.see_new(torch.tensor([0, 2]))
    old = [bce(LOGITS[row, 1].item(), sigmoid(TEACHER[row, 1].item())) for row in (0, 1)]
    new = [bce(0.5, 1), bce(0.0, 0), bce(2.0, 0), bce(1.0, 1)]
    expected = (sum(old) + sum(new)) / 6
    assert loss(LOGITS, LABELS, TEACHER).item() == pytest.approx(expected, abs=1e-6)
    loss.see_new(torch.tensor([0, 1, 2]))
    assert not loss.distils


class Body(nn.Module):
    """Digits, with a head that grows."""

    def __init__(self, growing):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1))
        self.head = IncrementalClassifier(48, 2) if growing else nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.body(x))


def build(memory, *, growing=True, plugins=(), epochs=4, **options):
    torch.manual_seed(0)
    model = Body(growing)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    return ICaRL(
        model=model,
        optimizer=optimizer,
        memory=memory,
        train_mb_size=32,
        train_epochs=epochs,
        plugins=plugins,
        **options,
    )


def accuracy(strategy, digits):
    x, y = digits
    strategy.model.eval()
    return (strategy.model(x.float() / 255).argmax(1) == y).float().mean().item()


@pytest.mark.parametrize("growing", [True, False])
def test_remembers(digits, stream, growing):
    with CarMPlugin(60, MemoryTier(), sync=True, seed=0) as memory:
        strategy = build(memory, growing=growing)
        head = strategy.model.net.head.state_dict()
        before = {key: value.clone() for key, value in head.items() if "weight" in key}
        for experience in stream:
            strategy.train(experience, eval_streams=[])
            assert memory.carousel.filled == 60
            here = memory.carousel.residents()
            counts = np.bincount(here.labels)
            assert counts[counts > 0].max() - counts[counts > 0].min() <= 1
            assert strategy.model.known.tolist() == (counts > 0).tolist()
        assert memory.carousel.stats().swaps.done > 0
        assert accuracy(strategy, digits) > 0.7
        for key, value in before.items():
            assert not torch.equal(strategy.model.net.head.state_dict()[key][: len(value)], value)


class Looks(SupervisedPlugin):
    """Exemplars before the end of an experience, and the model at that moment."""

    def after_training_epoch(self, strategy, **kwargs):
        self.before = strategy.memory.carousel.residents()


def features(strategy, x):
    return strategy.model.features(x.float() / 255)


def test_exemplars_and_means_are_those_of_the_papers(helpers, digits):
    """Every class is herded over its samples, and its mean is that of its exemplars."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    with CarMPlugin(25, MemoryTier(), sync=True, seed=0, swap=False) as memory:
        looks = Looks()
        strategy = build(memory, plugins=[looks], exemplars="keep", epochs=2)
        ranked = {}
        for experience in stream[:2]:
            strategy.train(experience, eval_streams=[])
            here = memory.carousel.residents()
            x, labels = memory.source.rows(torch.arange(len(memory.source))), memory.source.labels
            for label in np.unique(here.labels):
                mine = here.labels == label
                rows = torch.nonzero(labels == int(label)).squeeze(1)
                if len(rows):
                    order = rows[herd(features(strategy, x[rows]), mine.sum())]
                    ranked[label] = memory.ids_of(order)
                else:  # kept from before: the best-ranked
                    ranked[label] = ranked[label][: mine.sum()]
                assert set(here.ids[mine]) == set(ranked[label])
                held = memory.carousel.peek(here.slots[mine])["x"]
                mean = nn.functional.normalize(features(strategy, held).mean(0), dim=0)
                assert torch.allclose(strategy.model.means[label], mean, atol=1e-5)


def test_rerank_herds_old_classes_over_memory_and_storage(helpers):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    with CarMPlugin(20, MemoryTier(), sync=True, seed=0, swap_ratio=0.5) as memory:
        looks = Looks()
        strategy = build(memory, plugins=[looks], stored_per_class=10_000, epochs=2)
        for experience in stream[:2]:
            strategy.train(experience, eval_streams=[])
        here = memory.carousel.residents()
        label = int(looks.before.labels[0])
        assert label not in memory.source.labels
        ids = np.sort(memory.carousel.tier.ids_of(label))
        first = looks.before
        ids = np.concatenate([first.ids[first.labels == label], np.setdiff1d(ids, first.ids)])
        x = memory.carousel.read(ids)[0]["x"]
        expected = ids[herd(features(strategy, x), (here.labels == label).sum())]
        assert set(here.ids[here.labels == label]) == set(expected)


@pytest.mark.parametrize("means", ["memory", "stored"])
def test_without_swapping_nothing_comes_back_from_storage(helpers, means):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    with CarMPlugin(20, MemoryTier(), sync=True, seed=0, swap=False) as memory:
        looks = Looks()
        strategy = build(memory, plugins=[looks], means=means, epochs=1)
        for experience in stream[:3]:
            strategy.train(experience, eval_streams=[])
            here = memory.carousel.residents()
            old = here.ids[here.ids < memory.first_id]
            assert set(old) <= set(looks.before.ids)
        for label in np.unique(here.labels):
            held = memory.carousel.peek(here.slots[here.labels == label])["x"]
            mean = nn.functional.normalize(features(strategy, held).mean(0), dim=0)
            assert torch.allclose(strategy.model.means[label], mean, atol=1e-5)


def test_keep_takes_what_was_swapped_into_the_best_slots(helpers):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    with CarMPlugin(20, MemoryTier(), sync=True, seed=0, swap_ratio=1.0, gate="all") as memory:
        looks = Looks()
        strategy = build(memory, plugins=[looks], exemplars="keep", epochs=2)
        strategy.train(stream[0], eval_streams=[])
        first = memory.carousel.residents()
        ranks = dict(zip(first.slots, memory._update._ranks[first.slots], strict=True))
        strategy.train(stream[1], eval_streams=[])
        assert set(looks.before.ids) != set(first.ids)  # swapped
        here = memory.carousel.residents()
        for label in np.unique(first.labels):
            slots = sorted(looks.before.slots[looks.before.labels == label], key=ranks.get)
            kept = slots[: (here.labels == label).sum()]
            swapped_in = dict(zip(looks.before.slots, looks.before.ids, strict=True))
            assert set(here.ids[here.labels == label]) == {swapped_in[slot] for slot in kept}


@pytest.mark.parametrize("means", ["memory", "stored"])
def test_means_of_more_samples_and_of_mirror_images(helpers, means):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    with CarMPlugin(20, MemoryTier(), sync=True, seed=0) as memory:
        strategy = build(memory, means=means, mirror=True, stored_per_class=10_000, epochs=1)
        strategy.train(stream[0], eval_streams=[])
        here = memory.carousel.residents()
        for label in np.unique(here.labels):
            stored = np.sort(memory.carousel.tier.ids_of(int(label)))
            ids = here.ids[here.labels == label] if means == "memory" else stored
            assert len(ids) == 10 or means == "stored"
            x = memory.carousel.read(ids)[0]["x"]
            both = features(strategy, x).mean(0) + features(strategy, x.flip(3)).mean(0)
            mean = nn.functional.normalize(both, dim=0)
            assert torch.allclose(strategy.model.means[label], mean, atol=1e-5)


def test_predicts_by_logits_until_the_first_experience_ends(helpers, digits):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    x = digits[0][:50].float() / 255

    class Predicts(SupervisedPlugin):
        def after_training_epoch(self, strategy, **kwargs):
            strategy.model.eval()
            assert torch.equal(strategy.model(x), strategy.model.net(x))
            strategy.model.train()

    with CarMPlugin(20, MemoryTier(), sync=True, seed=0) as memory:
        strategy = build(memory, plugins=[Predicts()], epochs=1)
        strategy.train(stream[0], eval_streams=[])
        strategy.model.eval()
        scores = strategy.model(x)
        assert not torch.equal(scores, strategy.model.net(x))
        learned = torch.tensor(sorted(stream[0].classes_in_this_experience))
        assert torch.isin(scores.argmax(1), learned).all()
        assert (scores[:, ~strategy.model.known] == NEVER).all()


def random_stream(helpers, arrivals):
    """Experiences with any number of samples of any classes, which may come back."""
    rng = np.random.default_rng(0)
    sets = []
    for arrival in arrivals:
        y = torch.tensor([label for label, count in arrival for _ in range(count)])
        x = torch.from_numpy(rng.normal(size=(len(y), 1, 8, 8)).astype(np.float32))
        sets.append(as_classification_dataset(helpers.tensor_set(x, y)))
    return benchmark_from_datasets(train=sets, test=sets).train_stream


arrivals = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15, deadline=None)
@given(arrivals, st.integers(5, 12), st.sampled_from(["rerank", "keep"]))
def test_never_more_exemplars_than_slots(arrivals, slots, exemplars):
    helpers = Helpers_()
    with CarMPlugin(slots, MemoryTier(), sync=True, seed=0) as memory:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        strategy = ICaRL(model=model, optimizer=optimizer, memory=memory, exemplars=exemplars)
        seen = {}
        for arrival, experience in zip(arrivals, random_stream(helpers, arrivals), strict=True):
            strategy.train(experience, eval_streams=[])
            for label, count in arrival:
                seen[label] = seen.get(label, 0) + count
            here = memory.carousel.residents()
            counts = {label: int((here.labels == label).sum()) for label in seen}
            assert len(set(here.ids)) == len(here) <= slots
            assert sum(counts.values()) == len(here)
            least = slots // len(seen)
            for label, count in counts.items():
                assert count <= seen[label]
                if exemplars == "rerank":  # "keep" cannot take back what it gave up
                    assert count >= min(least, seen[label])


class Helpers_:
    """Fixtures do not go with hypothesis."""

    @staticmethod
    def tensor_set(x, y):
        from torch.utils.data import TensorDataset

        data = TensorDataset(x, y)
        data.targets = y.tolist()
        return data


def test_classes_come_back(helpers, digits):
    """Domain-incremental: no old class, labels count, and memory and means know both domains."""
    x, y = digits
    sets = [(x[:150], y[:150]), (255 - x[150:300], y[150:300])]
    groups = {"train": (helpers.ToFloat(), None), "eval": (helpers.ToFloat(), None)}
    data = [
        as_classification_dataset(helpers.tensor_set(*some), transform_groups=groups)
        for some in sets
    ]
    stream = with_classes_timeline(benchmark_from_datasets(train=data, test=data)).train_stream
    with CarMPlugin(40, MemoryTier(), sync=True, seed=0) as memory:
        strategy = build(memory)
        for experience in stream:
            strategy.train(experience, eval_streams=[])
        here = memory.carousel.residents()
        assert np.bincount(here.labels).tolist() == [4] * 10
        assert 0 < (here.ids < memory.first_id).sum() < 40
        assert not strategy._loss.distils


def test_online_streams(helpers):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    with CarMPlugin(20, MemoryTier(), sync=True, seed=0) as memory:
        strategy = build(memory, epochs=1, growing=False)
        for experience in list(split_online_stream(stream[:2], 40))[:5]:
            strategy.train(experience, eval_streams=[])
        assert memory.carousel.filled == 20
        assert strategy.model.known.sum() == len(np.unique(memory.carousel.residents().labels))


class Killed(Exception):
    """The process is gone."""


class Kill(SupervisedPlugin):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def after_training_iteration(self, strategy, **kwargs):
        if strategy.clock.train_iterations + 1 == self.at:
            raise Killed


def run(folder, stream, *, kill=None, every=None, **options):
    """One process's part of a run; the strategy if it came to its end."""
    with CarMPlugin(30, folder / "db", sync=True, seed=0, **options.pop("memory", {})) as memory:
        checkpoint = RunCheckpoint(folder / "checkpoints", every=every)
        plugins = [checkpoint, *([Kill(kill)] if kill else [])]
        strategy = build(memory, plugins=plugins, epochs=2, **options)
        torch.manual_seed(1)
        position = checkpoint.restore(strategy, stream)
        try:
            for experience in stream[position.experiences if position else 0 :]:
                strategy.train(experience, eval_streams=[])
        except Killed:
            return None
        return strategy, memory.carousel.residents(), memory.carousel.stats().swaps, position


@pytest.mark.parametrize(
    "options",
    [
        {"exemplars": "rerank", "means": "stored"},
        {"exemplars": "keep", "growing": False},
        {"memory": {"swap": False}},
    ],
)
def test_a_resumed_run_is_the_run(helpers, tmp_path, options):
    stream = helpers.new_family(helpers.ToFloat()).train_stream[:3]
    whole, here, swaps, _ = run(tmp_path / "whole", stream, **options)
    assert (swaps.done > 0) == ("memory" not in options)
    for kill in (13, 25, None):
        part = run(tmp_path / "parts", stream, kill=kill, every=3, **options)
        assert (part is None) == (kill is not None)
    again, here_again, swaps_again, position = part
    assert position.within
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[key]), key
    assert here.ids.tolist() == here_again.ids.tolist()
    assert swaps == swaps_again
    x = torch.rand(20, 1, 8, 8)
    assert torch.equal(whole.teacher(x), again.teacher(x))


def test_means_are_there_before_a_resumed_experience_ends(helpers, tmp_path, digits):
    """What was predicted at the last checkpoint is predicted by the process that goes on."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream[:2]
    x = digits[0].float() / 255
    assert run(tmp_path, stream[:1]) is not None
    assert run(tmp_path, stream, kill=11, every=1) is None
    seen = []

    class Predicts(SupervisedPlugin):
        def before_training_iteration(self, strategy, **kwargs):
            if not seen:
                seen.append(strategy.model.eval()(x))
                strategy.model.train()

    with CarMPlugin(30, tmp_path / "db", sync=True, seed=0) as memory:
        checkpoint = RunCheckpoint(tmp_path / "checkpoints")
        strategy = build(memory, plugins=[Predicts(), checkpoint], epochs=2)
        position = checkpoint.restore(strategy, stream)
        assert position.within
        restored = strategy.model.eval()(x)
        strategy.train(stream[1], eval_streams=[])
    assert torch.equal(seen[0], restored)
    learned = torch.tensor(sorted(stream[0].classes_in_this_experience))
    assert torch.isin(restored.argmax(1), learned).all()
    mine = torch.isin(digits[1], learned)
    assert (restored.argmax(1) == digits[1])[mine].float().mean() > 0.9


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"exemplars": "shuffle"}, "exemplars is 'shuffle'"),
        ({"means": "all"}, "means is 'all'"),
        ({"stored_per_class": 0}, "stored_per_class is 0"),
        ({"distill_weight": 2}, "distill_weight is 2"),
        ({"features": "neck"}, "no module 'neck'"),
    ],
)
def test_bad_options(options, match):
    with CarMPlugin(20, MemoryTier()) as memory, pytest.raises(BadInputError, match=match):
        build(memory, **options)


def test_bad_streams_and_memories(stream):
    with CarMPlugin(9, MemoryTier()) as memory:
        with pytest.raises(BadInputError, match="9 slots and the stream 10 classes"):
            build(memory).train(stream[0], eval_streams=[])
        assert len(memory.carousel.tier.entries()) == 0
    for rule in ({"update": "batch"}, {"admission": "ring"}, {"replay": "memory"}):
        refused = pytest.raises(BadInputError, match=r"iCaRL (cannot work|learns)")
        with CarMPlugin(20, MemoryTier(), **rule) as memory, refused:
            build(memory)


def test_features_are_looked_for_before_anything_is_stored(helpers, stream):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(64, 10)

        def forward(self, x):
            return self.body(x.flatten(1)).repeat(1, 2)

    with CarMPlugin(20, MemoryTier()) as memory:
        model = Odd()
        optimizer = helpers.sgd(model)
        strategy = ICaRL(model=model, optimizer=optimizer, memory=memory)
        with pytest.raises(BadInputError, match="features="):
            strategy.train(stream[0], eval_streams=[])
        assert len(memory.carousel.tier.entries()) == 0


def test_no_teacher_speaks_for_classes_of_an_experience_that_broke_off():
    loss = a_loss()
    loss.see_new(torch.tensor([3]))
    expected = [bce(logit.item(), sigmoid(teacher.item())) for logit, teacher in
                ((LOGITS[r, c], TEACHER[r, c]) for r in (0, 1) for c in (0, 1))]  # fmt: skip
    expected += [bce(LOGITS[r, c].item(), float(LABELS[r] == c)) for r in (0, 1) for c in (2, 3)]
    assert loss(LOGITS, LABELS, TEACHER).item() == pytest.approx(np.mean(expected), abs=1e-6)
    again = DistilledBCE()
    again.load_state_dict(loss.state_dict())
    again.see_new(torch.tensor([3]))
    assert torch.equal(again(LOGITS, LABELS, TEACHER), loss(LOGITS, LABELS, TEACHER))
    loss.learned()
    loss.see_new(torch.tensor([4]))
    assert loss.distils
    with pytest.raises(IndexError):  # now the teacher must know class 3
        loss(torch.zeros(2, 5), LABELS, TEACHER)


@pytest.mark.parametrize("grows", [False, True])
def test_going_on_with_the_next_experience_after_one_that_broke_off(helpers, stream, grows):
    class Break(SupervisedPlugin):
        def after_backward(self, strategy, **_):
            if strategy.experience.current_experience == 1:
                raise KeyError("the user's own")

    torch.manual_seed(0)
    head = IncrementalClassifier(32, 2) if grows else nn.Linear(32, 10)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), head)
    with CarMPlugin(40, MemoryTier(), sync=True, seed=0) as memory:
        optimizer = helpers.sgd(model, 0.1)
        icarl = ICaRL(model=model, optimizer=optimizer, memory=memory, plugins=[Break()])
        for experience in stream[:4]:
            try:
                icarl.train(experience, eval_streams=[])
            except KeyError:
                assert experience.current_experience == 1
        counts = np.bincount(memory.carousel.residents().labels)
        assert sorted(counts[counts > 0]) == [6, 6, 7, 7, 7, 7]


def test_features_of_a_callable_and_classes_that_were_not_met(helpers, stream):
    model = helpers.model()
    with CarMPlugin(40, MemoryTier(), sync=True, seed=0) as memory:
        icarl = ICaRL(model=model, optimizer=helpers.sgd(model), memory=memory, features=model[:3])
        icarl.train(stream[0], eval_streams=[])
        icarl.eval(stream)
        x = helpers.ToFloat()(memory.source.rows(torch.arange(3)))
        assert icarl.model.eval()(x).shape == (3, 10)


def test_a_memory_in_bytes_that_is_too_small_is_refused_before_the_first_experience(
    helpers, stream
):
    tier, model = MemoryTier(), helpers.model()
    with CarMPlugin("3KiB", tier, sync=True, seed=0) as memory:
        icarl = ICaRL(model=model, optimizer=helpers.sgd(model), memory=memory)
        with pytest.raises(BadInputError, match="6 slots and the stream 10 classes"):
            icarl.train(stream[0], eval_streams=[])
        assert memory.carousel.schema is None
        assert len(tier.entries()) == 0


class Unreadable(MemoryTier):
    """Gives nothing back from some time on."""

    broken = False

    def get_into(self, ids, out, rows):
        if self.broken:
            raise OSError("the disk is gone")
        return super().get_into(ids, out, rows)


def test_means_of_what_is_in_memory_where_storage_gives_nothing(helpers, stream):
    tier, model = Unreadable(), helpers.model()
    with CarMPlugin(40, tier, sync=True, seed=0) as memory:
        icarl = ICaRL(
            model=model,
            optimizer=helpers.sgd(model),
            memory=memory,
            exemplars="keep",
            means="stored",
            stored_per_class=1,
        )
        icarl.train(stream[0], eval_streams=[])
        tier.broken = True
        icarl.train(stream[1], eval_streams=[])
        assert int(icarl.model.known.sum()) == 4


def test_parts_that_a_user_froze_stay_frozen(helpers, stream):
    class Modes(SupervisedPlugin):
        def after_training_epoch(self, strategy, **_):
            strategy.model.net[1].eval()

        def after_training_exp(self, strategy, **_):
            seen.append(strategy.model.net[1].training)

    torch.manual_seed(0)
    seen = []
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    with CarMPlugin(40, MemoryTier(), sync=True, seed=0) as memory:
        optimizer = helpers.sgd(model)
        icarl = ICaRL(model=model, optimizer=optimizer, memory=memory, plugins=[Modes()])
        icarl.train(stream[0], eval_streams=[])
    assert seen == [False]
