"""CarMPlugin: replay inside Avalanche's strategies, whatever the benchmark, loader and plugins."""

import gc
import threading
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from avalanche.benchmarks.scenarios import split_online_stream
from avalanche.models import IncrementalClassifier, MTSimpleMLP
from avalanche.training.plugins import EWCPlugin, LwFPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.supervised import Cumulative, Naive
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.storage import LMDBTier, MemoryTier
from carousel.strategies import CarMPlugin
from carousel.strategies.loader import StreamLoader


class Probe(SupervisedPlugin):
    """Checks every mini-batch of training, after the memory has had its turn."""

    def __init__(self, memory, x, y):
        super().__init__()
        self.memory = memory
        self.known = {x[i].numpy().tobytes(): int(y[i]) for i in range(len(x))}
        self.rows = []
        self.loaders = set()
        self.labels = []

    def before_forward(self, strategy, **kwargs):
        self.loaders.add(type(strategy.dataloader))
        mask = self.memory.replay_mask(strategy)
        self.rows.append((int((~mask).sum()), int(mask.sum())))
        self.labels.append((strategy.mb_y[~mask].tolist(), strategy.mb_y[mask].tolist()))
        assert len(strategy.mb_x) == len(strategy.mb_y)
        if len(strategy.mbatch) == 3:
            assert len(strategy.mb_task_id) == len(strategy.mb_y)
        raw = (strategy.mb_x * 255).round().to(torch.uint8)
        for sample, label in zip(raw, strategy.mb_y.tolist(), strict=True):
            assert self.known[sample.numpy().tobytes()] == label


def memory(**options):
    options = {"sync": True, "seed": 0, **options}
    size = options.pop("memory_size", 60)
    return CarMPlugin(size, options.pop("tier", None) or MemoryTier(), **options)


def train(plugin, stream, digits, helpers, strategy=None, **options):
    probe = Probe(plugin, *digits)
    strategy = strategy or helpers.naive([plugin, probe], **options)
    for experience in stream:
        strategy.train(experience, eval_streams=[])
    return strategy, probe


@pytest.mark.parametrize("fast_loader", ["auto", False])
@pytest.mark.parametrize("replay", ["concat", "mixed"])
def test_naive_becomes_experience_replay(helpers, digits, stream, fast_loader, replay):
    """Both families, both loaders: samples keep their labels, old classes come back."""
    with memory(fast_loader=fast_loader, replay=replay) as plugin:
        _, probe = train(plugin, stream, digits, helpers, train_epochs=2)
        stats = plugin.carousel.stats()
    assert probe.loaders == {StreamLoader} if fast_loader else StreamLoader not in probe.loaders
    assert stats.swaps.done > 0
    assert stats.swaps.requested == sum(
        getattr(stats.swaps, name)
        for name in (
            "done", "stale", "duplicate", "no_candidate", "corrupt", "io_error", "dropped_full",
            "cancelled",
        )
    )  # fmt: skip
    assert stats.filled == 60
    assert stats.storage.records == 600
    new = [set(labels) for labels, _ in probe.labels]
    old = [set(labels) for _, labels in probe.labels]
    assert all(not (a & b) for a, b in zip(new, old, strict=True))
    assert set().union(*old) == set(range(10)) - new[-1]
    assert set().union(*new) == set(range(10))


def test_each_step_replays_as_many_rows_without_repeats(helpers, digits, stream):
    with memory(memory_size=20, batch_size_mem=15) as plugin:
        drawn = []
        sample = plugin.carousel.sample_slots

        def spy(slots, out=None):
            drawn.append(slots.tolist())
            return sample(slots, out)

        plugin.carousel.sample_slots = spy
        _, probe = train(plugin, stream, digits, helpers)
    first = len(probe.rows) - len(drawn)
    assert {n for _, n in probe.rows[:first]} == {0}
    assert {n for _, n in probe.rows[first:]} == {15}
    assert all(len(set(slots)) == 15 for slots in drawn)
    assert len({tuple(sorted(slots)) for slots in drawn}) > len(drawn) // 2
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    # 15 of 20 slots a step: within five standard errors of a uniform draw
    assert abs(counts - 0.75 * len(drawn)).max() < 5 * (len(drawn) * 0.75 * 0.25) ** 0.5


def test_the_default_is_the_batch_size_and_at_most_what_is_there(helpers, digits, stream):
    with memory(memory_size=20) as plugin:
        _, probe = train(plugin, stream, digits, helpers, train_mb_size=8)
        assert {n for _, n in probe.rows} == {0, 8}
    with memory(memory_size=20) as plugin:
        _, probe = train(plugin, stream, digits, helpers, train_mb_size=32)
        assert {n for _, n in probe.rows} == {0, 20}


def test_mixed_passes_once_over_stream_and_memory(helpers, digits):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    with memory(replay="mixed") as plugin:
        _, probe = train(plugin, stream[:2], digits, helpers)
    first = -(-len(stream[0].dataset) // 32)
    second = probe.rows[first:]
    assert sum(n for n, _ in second) == len(stream[1].dataset)
    assert sum(n for _, n in second) == 60
    assert {a + b for a, b in second[:-1]} == {32}


@pytest.mark.parametrize("fast_loader", ["auto", False])
def test_online_updates_save_each_batch_raw(helpers, digits, stream, fast_loader):
    """Replay starts within the first experience; a second epoch adds nothing twice."""
    x, y = digits
    with memory(update="batch", admission="reservoir", fast_loader=fast_loader) as plugin:
        _, probe = train(plugin, stream, digits, helpers, train_epochs=2)
        plugin.carousel.flush()
        tier = plugin.carousel.tier
        assert len(tier.entries()) == 600
        stored = tier.get_many(tier.entries().ids)
    assert probe.rows[0][1] == 0
    assert probe.rows[1][1] == 32
    expected = sorted((x[i].numpy().tobytes(), int(y[i])) for i in range(len(x)))
    assert sorted((r.fields["x"].tobytes(), r.label) for r in stored) == expected


def test_split_online_streams(helpers, digits):
    benchmark = helpers.new_family(helpers.ToFloat())
    online = split_online_stream(benchmark.train_stream, experience_size=10, drop_last=False)
    with memory(update="batch", admission="reservoir") as plugin:
        _, probe = train(plugin, online, digits, helpers, train_mb_size=10)
        plugin.carousel.flush()
        assert len(plugin.carousel.tier.entries()) == 600
    assert {n for n, _ in probe.rows} <= {*range(1, 11)}
    assert probe.rows[-1][1] == 10


@pytest.mark.parametrize("masked", [False, True])
def test_online_streams_made_experience_by_experience(helpers, digits, masked):
    """Each of them counts its parts from 0, and no part may take another's ids."""
    benchmark = helpers.new_family(helpers.ToFloat())
    with memory(update="batch", admission="reservoir") as plugin:
        strategy = None
        for _ in range(2):
            for whole in benchmark.train_stream:
                parts = split_online_stream([whole], experience_size=30, drop_last=True, seed=0)
                stream = [part.train() if masked else part for part in parts]
                strategy, _ = train(
                    plugin, stream, digits, helpers, strategy=strategy, train_mb_size=10
                )
        plugin.carousel.flush()
        sizes = [len(whole.dataset) for whole in benchmark.train_stream]
        assert len(plugin.carousel.tier.entries()) == sum(size - size % 30 for size in sizes)


class Jittered(torch.utils.data.Dataset):
    """Like a data set of torchvision that was given a random transform."""

    transform = "random"

    def __init__(self, x, y):
        self.x, self.targets = x, y.tolist()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row].float() / 255 + torch.rand(()), self.targets[row]


@pytest.mark.filterwarnings("ignore:Jittered transforms")
@pytest.mark.parametrize("update", ["experience", "batch"])
def test_samples_that_differ_each_time_stay_as_they_were_stored(helpers, digits, update):
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils import as_classification_dataset

    x, y = digits
    parts = [as_classification_dataset(Jittered(x[at], y[at])) for at in (range(60), range(60, 90))]
    with memory(memory_size=90, update=update) as plugin:
        strategy = helpers.naive([plugin])
        for experience in benchmark_from_datasets(train=parts).train_stream:
            for _ in range(2):
                strategy.train(experience, eval_streams=[])
        replay = plugin.carousel.sample(90)
        stored = plugin.carousel.tier.get_many(replay.ids)
        assert len(plugin.carousel.tier.entries()) == 90
        assert len(replay) > 60
    if update == "batch":
        for sample, record in zip(replay.x, stored, strict=True):
            assert torch.equal(sample, torch.from_numpy(record.fields["x"]))


@pytest.mark.parametrize("ratio", ["0.5", Fraction(1, 2)])
def test_a_ratio_may_be_written_exactly(helpers, digits, stream, ratio):
    with memory(swap_ratio=ratio) as plugin:
        train(plugin, stream[:2], digits, helpers)
        assert plugin.carousel.stats().swaps.done > 0


def test_with_lmdb_and_a_worker(helpers, digits, stream, tmp_path):
    with CarMPlugin(60, tmp_path / "db", swap_ratio=1.0, gate="all", seed=0) as plugin:
        train(plugin, stream, digits, helpers, train_epochs=2)
        plugin.carousel.flush()
        stats = plugin.carousel.stats()
        assert stats.swaps.done > 0
        assert stats.storage.records == 600
        assert stats.distinct_samples_replayed > 60
    assert not [t for t in threading.enumerate() if t.name.startswith("carousel")]
    with LMDBTier(tmp_path / "db") as tier:
        assert tier.verify().ok


def test_beside_the_default_evaluator(helpers, digits, stream, capsys):
    with memory() as plugin:
        strategy, _ = train(plugin, stream, digits, helpers, evaluator=default_evaluator)
        results = strategy.eval(stream)
    assert any("Top1_Acc_Stream" in name for name in results)
    assert plugin.memory_rows is None


@pytest.mark.parametrize("other", [lambda: EWCPlugin(0.1), LwFPlugin, lambda: ReplayPlugin(30)])
@pytest.mark.parametrize("first", [True, False])
def test_beside_other_plugins(helpers, digits, other, first):
    stream = helpers.old_family(helpers.ToFloat()).train_stream
    with memory() as plugin:
        probe = Probe(plugin, *digits)
        plugins = [plugin, other()] if first else [other(), plugin]
        strategy = helpers.naive([*plugins, probe])
        train(plugin, stream[:3], digits, helpers, strategy)
        assert plugin.carousel.stats().swaps.done > 0
    # Avalanche's replay makes its own loader from the second experience on: it stays
    if any(isinstance(p, ReplayPlugin) for p in plugins):
        assert len(probe.loaders) == 2


def test_other_strategies(helpers, digits, stream):
    """Cumulative trains on more than the experience: it is loaded fast, and saved once."""
    model = helpers.model()
    with memory() as plugin:
        probe = Probe(plugin, *digits)
        strategy = Cumulative(
            model=model,
            optimizer=helpers.sgd(model),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=32,
            plugins=[plugin, probe],
            evaluator=None,
        )
        train(plugin, stream, digits, helpers, strategy)
        assert plugin.carousel.stats().storage.records == 600
    assert probe.loaders == {StreamLoader}
    assert sum(n for n, _ in probe.rows) > 1200


def test_growing_heads(helpers, digits, stream):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), IncrementalClassifier(32, 1))
    model[-1].masking = True
    with memory() as plugin:
        train(plugin, stream, digits, helpers, model=model)
        assert plugin.carousel.stats().swaps.done > 0
    assert model[-1].classifier.out_features == 10


def test_multi_head_models_with_task_labels(helpers, digits):
    stream = helpers.old_family(helpers.ToFloat(), task_labels=True).train_stream
    model = MTSimpleMLP(input_size=64, hidden_size=16)
    seen = []

    class Tasks(SupervisedPlugin):
        def before_forward(self, strategy, **kwargs):
            rows = plugin.memory_rows
            seen.append(set(strategy.mb_task_id[rows].tolist()) if rows else set())

    with memory() as plugin:
        strategy = helpers.naive([plugin, Tasks()], model=model)
        for experience in stream:
            strategy.train(experience, eval_streams=[])
    assert set().union(*seen) == {0, 1, 2, 3}
    assert len(model.classifier.classifiers) == 5


class TestLoader:
    """When the stream's loader is replaced."""

    def loader_of(self, helpers, stream, plugins=(), plugin=None, **kwargs):
        plugin = plugin or memory()
        loaders = []

        class Note(SupervisedPlugin):
            def before_training_epoch(self, strategy, **kwargs):
                loaders.append(strategy.dataloader)

        with plugin:
            helpers.naive([*plugins, plugin, Note()]).train(stream[0], eval_streams=[], **kwargs)
        return loaders[0]

    def test_options_of_train_are_honoured(self, helpers, stream):
        loader = self.loader_of(helpers, stream, shuffle=False, drop_last=True)
        assert isinstance(loader, StreamLoader)
        assert (loader.shuffle, loader.drop_last, loader.batch_size) == (False, True, 32)
        loader = self.loader_of(helpers, stream)
        assert (loader.shuffle, loader.drop_last) == (True, False)

    def test_workers_keep_avalanches_loader(self, helpers, stream):
        loader = self.loader_of(helpers, stream, num_workers=1)
        assert not isinstance(loader, StreamLoader)

    def test_another_plugins_loader_stays(self, helpers, stream):
        class Own(SupervisedPlugin):
            def before_training_exp(self, strategy, **kwargs):
                strategy.dataloader = DataLoader(
                    strategy.adapted_dataset,
                    batch_size=32,
                    sampler=torch.utils.data.WeightedRandomSampler([1.0] * 40, 40),
                )

        assert type(self.loader_of(helpers, stream, [Own()])) is DataLoader
        with pytest.raises(BadInputError, match="fast_loader is True but the loader is not"):
            self.loader_of(helpers, stream, [Own()], memory(fast_loader=True))

    def test_per_sample_transforms_keep_avalanches_loader(self, helpers):
        stream = helpers.new_family(lambda x: x.float()).train_stream
        assert type(self.loader_of(helpers, stream)) is DataLoader
        with pytest.raises(BadInputError, match="one by one"):
            self.loader_of(helpers, stream, plugin=memory(fast_loader=True))
        loader = self.loader_of(helpers, stream, plugin=memory(transform=lambda x: x.float()))
        assert isinstance(loader, StreamLoader)


def test_transforms_run_after_the_gather(helpers, digits):
    """Foreign transforms once a sample, on raw samples, for replayed rows as for the stream."""
    calls = []

    def foreign(x):
        calls.append(x.dtype)
        return x.float() / 255

    stream = helpers.new_family(foreign).train_stream
    with memory(memory_size=20) as plugin:
        _, probe = train(plugin, stream[:2], digits, helpers)
    replayed = sum(n for _, n in probe.rows)
    assert replayed > 0
    assert len(calls) == sum(len(e.dataset) for e in stream[:2]) + replayed
    assert set(calls) == {torch.uint8}


def test_the_optimizer_is_the_users(helpers, digits, stream):
    model = helpers.model()
    optimizer = torch.optim.SGD(
        [{"params": model[1].parameters(), "lr": 0.01}, {"params": model[3].parameters()}], lr=0.1
    )
    with memory() as plugin:
        strategy = Naive(
            model=model, optimizer=optimizer, plugins=[plugin], evaluator=None, train_mb_size=32
        )
        train(plugin, stream, digits, helpers, strategy)
    assert strategy.optimizer is optimizer
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.1]
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]


def test_no_swap_saves_all_the_same(helpers, digits, stream):
    with memory(swap=False) as plugin:
        train(plugin, stream, digits, helpers)
        stats = plugin.carousel.stats()
    assert stats.swaps.requested == 0
    assert stats.storage.records == 600
    assert stats.filled == 60


def test_the_same_experience_again_adds_nothing(helpers, digits, stream):
    with memory() as plugin:
        train(plugin, [stream[0], stream[0]], digits, helpers)
        stats = plugin.carousel.stats()
        assert stats.storage.records == len(stream[0].dataset)
        residents = plugin.carousel.state_dict()
    assert stats.filled == 60
    assert residents is not None


def test_the_gate_sees_the_logits_of_the_replayed_rows(helpers, digits, stream):
    seen = []

    def gate(batch):
        seen.append((batch.logits.clone(), batch.labels.clone(), batch.logits.requires_grad))
        return np.arange(len(batch.labels))[: -(-len(batch.labels) // 2)]

    outputs = []

    class Note(SupervisedPlugin):
        def before_backward(self, strategy, **kwargs):
            if plugin.memory_rows is not None:
                rows = plugin.memory_rows
                outputs.append((strategy.mb_output[rows].detach().clone(), strategy.mb_y[rows]))

    with memory(gate=gate) as plugin:
        train(plugin, stream[:2], digits, helpers, helpers.naive([plugin, Note()]))
    assert len(seen) == len(outputs) > 0
    for (logits, labels, grad), (expected, y) in zip(seen, outputs, strict=True):
        assert torch.equal(logits, expected)
        assert torch.equal(torch.as_tensor(labels), y)
        assert not grad


class TestBadInput:
    """Refused with one sentence, before anything changes."""

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"update": "never"}, "update is 'never'"),
            ({"replay": "all"}, "replay is 'all'"),
            ({"fast_loader": "yes"}, "fast_loader is 'yes'"),
            ({"batch_size_mem": 0}, "batch_size_mem is 0"),
            ({"replay": "mixed", "update": "batch"}, "mixed"),
            ({"swap_ratio": 1.5}, "1.5"),
            ({"gate": "balancd"}, "balanced"),
            ({"admission": "reservor"}, "reservoir"),
            ({"memory_size": 0}, "0"),
        ],
    )
    def test_arguments(self, options, match, tmp_path):
        size = options.pop("memory_size", 10)
        with pytest.raises(BadInputError, match=match):
            CarMPlugin(size, tmp_path / "db", **options)
        assert not (tmp_path / "db").exists()

    def refused(self, helpers, x, y, match, kind=BadInputError, before=None):
        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.utils import as_classification_dataset

        sets = [helpers.tensor_set(x, y)]
        if before is not None:
            sets.insert(0, helpers.tensor_set(*before))
        sets = [as_classification_dataset(s) for s in sets]
        stream = benchmark_from_datasets(train=sets).train_stream
        model = helpers.model()
        weights = [p.clone() for p in model.parameters()]
        with memory() as plugin:
            strategy = helpers.naive([plugin], model=model)
            if before is not None:
                strategy.train(stream[0], eval_streams=[])
                weights = [p.clone() for p in model.parameters()]
            stored = plugin.carousel.stats().storage.records
            with pytest.raises(kind, match=match):
                strategy.train(stream[-1], eval_streams=[])
            assert plugin.carousel.stats().storage.records == stored
        assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))

    @pytest.mark.parametrize(
        ("wrap", "loss"),
        [
            (lambda out: (out, out), lambda out, y: nn.functional.cross_entropy(out[0], y)),
            (lambda out: {"a": out}, lambda out, y: nn.functional.cross_entropy(out["a"], y)),
            (
                lambda out: out[..., None],
                lambda out, y: nn.functional.cross_entropy(out[..., 0], y),
            ),
        ],
    )
    def test_outputs_that_no_gate_can_judge(self, helpers, wrap, loss):
        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = helpers.model()

            def forward(self, x):
                return wrap(self.inner(x))

        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.utils import as_classification_dataset

        data = as_classification_dataset(helpers.tensor_set(torch.rand(8, 64), torch.arange(8)))
        stream = benchmark_from_datasets(train=[data, data]).train_stream
        with memory() as plugin:
            strategy = helpers.naive([plugin], model=Wrapped(), criterion=loss)
            with pytest.raises(BadInputError, match="no gate can judge"):
                strategy.train(stream[0], eval_streams=[])
        with memory(swap=False) as plugin:
            strategy = helpers.naive([plugin], model=Wrapped(), criterion=loss)
            strategy.train(stream, eval_streams=[])
            assert plugin.carousel.filled == 16

    def test_labels_below_zero(self, helpers):
        self.refused(helpers, torch.rand(8, 64), torch.tensor([0, -1] * 4), "label -1")

    @pytest.mark.parametrize("bad", ["nan", "inf"])
    def test_nan(self, helpers, bad):
        x = torch.rand(8, 64)
        x[5, 3] = float(bad)
        self.refused(helpers, x, torch.arange(8), "sample 5 .* NaN")

    def test_a_shape_that_changes(self, helpers):
        self.refused(
            helpers, torch.rand(8, 64), torch.arange(8), "x", SchemaMismatchError,
            before=(torch.rand(8, 8, 8), torch.arange(8)),
        )  # fmt: skip

    def test_a_dtype_that_changes(self, helpers):
        self.refused(
            helpers, torch.rand(8, 64).double(), torch.arange(8), "float64", SchemaMismatchError,
            before=(torch.rand(8, 64), torch.arange(8)),
        )  # fmt: skip

    def test_an_empty_experience(self, helpers, stream):
        class Empty:
            dataset = TensorDataset(torch.zeros(0, 64), torch.zeros(0))
            current_experience = 0

        with memory() as plugin:
            strategy = helpers.naive([plugin])
            strategy.experience = Empty()
            with pytest.raises(BadInputError, match="no samples"):
                plugin.before_train_dataset_adaptation(strategy)

    def test_labels_beyond_the_model(self, helpers, stream):
        with memory() as plugin:
            strategy = helpers.naive([plugin], model=helpers.model(outputs=1))
            with pytest.raises(BadInputError, match="the model 1 outputs"):
                strategy.train(stream[0], eval_streams=[])

    def test_more_fields(self, helpers):
        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.utils import DataAttribute, as_classification_dataset

        data = as_classification_dataset(
            helpers.tensor_set(torch.rand(64, 64), torch.arange(64) % 8)
        )
        for name in ("a", "b"):
            numbers = DataAttribute(range(64), name, use_in_getitem=True)
            data = data.update_data_attribute(name, numbers)
        stream = benchmark_from_datasets(train=[data, data]).train_stream
        with memory() as plugin:
            strategy = helpers.naive([plugin])
            strategy.train(stream[0], eval_streams=[])
            with pytest.raises(BadInputError, match="4 fields"):
                strategy.train(stream[1], eval_streams=[])


def test_closing_twice_and_by_the_collector(helpers, digits, stream):
    plugin = memory(sync=False)
    train(plugin, stream[:2], digits, helpers)
    carousel = weakref.ref(plugin.carousel)
    plugin.close()
    plugin.close()
    other = memory(sync=False)
    train(other, stream[:2], digits, helpers)
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None
    assert carousel() is not None
    assert not [t for t in threading.enumerate() if t.name.startswith("carousel")]


def test_a_plugin_left_open_is_closed_at_exit(tmp_path):
    plugin = CarMPlugin(10, tmp_path / "db")
    plugin.carousel.save(None, torch.zeros(5).long(), x=torch.zeros(5, 4))
    close = plugin._close
    assert close.atexit
    assert close.alive
    close()  # what the interpreter does at its end
    assert not close.alive
    with LMDBTier(tmp_path / "db") as tier:
        assert len(tier.entries()) == 5
