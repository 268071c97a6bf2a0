"""TinyER: its memory rule, its loss by hand, task awareness, and what it learns."""

import math

import numpy as np
import pytest
import torch
from avalanche.benchmarks.scenarios import split_online_stream
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from torch import nn
from torch.nn.functional import cross_entropy

from carousel.data import load_stream, to_benchmark
from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import CarMPlugin, TinyER, make_strategy


def tiny(helpers, model=None, *, lr=0.1, plugins=(), size=40, tier=None, memory=None, **options):
    model = helpers.model() if model is None else model
    memory = {"sync": True, "seed": 0, **(memory or {})}
    return TinyER(
        model=model,
        optimizer=helpers.sgd(model, lr),
        memory=CarMPlugin(size, tier or MemoryTier(), **memory),
        plugins=plugins,
        **options,
    )


def train(strategy, stream):
    for experience in stream:
        strategy.train(experience, eval_streams=[])
    return strategy


class Steps(SupervisedPlugin):
    """Notes rows, labels, tasks, output and loss of every step."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def before_backward(self, strategy, **kwargs):
        tasks = strategy.mbatch[2] if len(strategy.mbatch) > 2 else None
        step = (strategy.memory.stream_rows, strategy.mb_y, tasks, strategy.mb_output.detach())
        self.steps.append((*step, strategy.loss.item()))


def test_a_step_is_ten_and_ten_and_one_mean(helpers, stream):
    steps = Steps()
    strategy = train(tiny(helpers, plugins=[steps]), stream[:2])
    assert strategy.memory.rules.gate == "score"
    assert strategy.memory.rules.admission == "reservoir"
    assert [len(y) - rows for rows, y, *_ in steps.steps[:3]] == [0, 10, 10]
    assert {rows for rows, *_ in steps.steps} <= set(range(1, 11))
    assert len(steps.steps) == sum(-(-len(e.dataset) // 10) for e in stream[:2])  # one pass
    for _, y, _, output, loss in steps.steps[1:]:
        rows = cross_entropy(output, y, reduction="none")
        assert loss == pytest.approx(rows.sum().item() / len(y), rel=1e-5)
    assert strategy.memory.carousel.stats().swaps.done > 0
    strategy.memory.close()


def test_the_reservoir_gives_every_sample_the_same_odds(helpers):
    """40 samples, 10 slots: each is in memory in a quarter of the runs, whenever it came."""
    x, y = torch.zeros(40, 1, 8, 8), torch.arange(40) % 2
    stream = helpers.new_family(x=x, y=y, experiences=1).train_stream
    counts = np.zeros(40)
    for seed in range(40):
        strategy = tiny(helpers, size=10, memory={"seed": seed, "swap": False, "fast_loader": True})
        train(strategy, stream)
        counts[strategy.memory.carousel.residents().ids] += 1
        strategy.memory.close()
    assert counts.sum() == 400
    expected, spread = 10, (40 * 0.25 * 0.75) ** 0.5
    assert abs(counts - expected).max() < 5 * spread
    first, last = counts[:20].sum(), counts[20:].sum()
    assert abs(first - last) < 5 * (400 * 0.75) ** 0.5


def test_a_ring_keeps_the_last_of_each_class(helpers, digits):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    strategy = train(tiny(helpers, size=40, memory={"admission": "ring", "swap": False}), stream)
    labels = strategy.memory.carousel.residents().labels
    assert np.bincount(labels, minlength=10).tolist() == [4] * 10
    strategy.memory.close()


class TestTaskAware:
    def test_the_loss_is_among_the_classes_of_the_own_task(self, helpers):
        """Recomputed with a loop over rows from the unmasked logits."""
        benchmark = helpers.old_family(helpers.ToFloat(), task_labels=True)
        classes = {
            i: sorted(e.classes_in_this_experience) for i, e in enumerate(benchmark.train_stream)
        }
        steps, raw = Steps(), []
        model = helpers.model()
        model.register_forward_hook(lambda _m, _i, output: raw.append(output.detach()))
        strategy = train(
            tiny(helpers, model, plugins=[steps], task_aware=True), benchmark.train_stream
        )
        mixed = 0
        for (_, y, tasks, output, loss), logits in zip(steps.steps, raw, strict=True):
            total = 0.0
            for row in range(len(y)):
                own = classes[int(tasks[row])]
                z = logits[row, own].double()
                total += (z.exp().sum().log() - logits[row, y[row]].double()).item()
                assert torch.isinf(output[row]).sum() == 10 - len(own)
            assert loss == pytest.approx(total / len(y), rel=1e-4)
            mixed += len(set(tasks.tolist())) > 1
        assert mixed > 10
        strategy.memory.close()

    def test_the_gate_sees_all_logits(self, helpers):
        benchmark = helpers.old_family(helpers.ToFloat(), task_labels=True)
        strategy, judged = tiny(helpers, task_aware=True), []
        observe = strategy.memory.carousel.observe

        def spy(replay, logits):
            judged.append(logits.clone())
            observe(replay, logits)

        strategy.memory.carousel.observe = spy
        train(strategy, benchmark.train_stream[:2])
        assert len(judged) > 10
        assert all(bool(logits.isfinite().all()) for logits in judged)
        assert strategy.memory.carousel.stats().swaps.done > 0
        strategy.memory.close()

    def test_evaluation_is_masked_the_same_way(self, helpers):
        """Avalanche's own metric, task by task; class-incremental accuracy is far lower."""
        scores = {}
        for aware in (True, False):
            benchmark = helpers.old_family(helpers.ToFloat(), task_labels=True)
            evaluator = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[])
            strategy = tiny(helpers, task_aware=aware, evaluator=evaluator, lr=0.3)
            train(strategy, benchmark.train_stream)
            values = strategy.eval(benchmark.test_stream)
            scores[aware] = next(v for k, v in values.items() if k.startswith("Top1_Acc_Stream"))
            strategy.memory.close()
        assert scores[True] > 0.85
        assert scores[True] > scores[False] + 0.2

    def test_unmet_tasks_can_be_evaluated(self, helpers):
        benchmark = helpers.old_family(helpers.ToFloat(), task_labels=True)
        evaluator = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[])
        strategy = train(
            tiny(helpers, task_aware=True, evaluator=evaluator), benchmark.train_stream[:1]
        )
        values = strategy.eval(benchmark.test_stream).values()
        assert all(math.isfinite(value) for value in values)
        strategy.memory.close()

    @pytest.mark.parametrize("kind", ["two fields", "all tasks 0", "a stream of ours"])
    def test_no_task_labels_are_refused_before_training(self, helpers, kind):
        stream = {
            "two fields": lambda: helpers.new_family(helpers.ToFloat()).train_stream,
            "all tasks 0": lambda: helpers.old_family(helpers.ToFloat()).train_stream,
            "a stream of ours": lambda: to_benchmark(load_stream("split-digits")).train_stream,
        }[kind]()
        strategy = tiny(helpers, task_aware=True)
        before = [p.clone() for p in strategy.model.parameters()]
        with pytest.raises(BadInputError, match=r"task labels.*task_labels=True"):
            strategy.train(stream[0], eval_streams=[])
        assert all(map(torch.equal, before, strategy.model.parameters()))
        assert len(strategy.memory.carousel.tier.entries()) == 0
        strategy.memory.close()

    def test_our_streams_with_task_labels_are_fine(self, helpers):
        benchmark = to_benchmark(load_stream("split-digits"), task_labels=True)
        strategy = train(tiny(helpers, task_aware=True), benchmark.train_stream[:2])
        assert set(strategy.memory.carousel.residents().tasks) == {0, 1}
        strategy.memory.close()


def growing(helpers):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), IncrementalClassifier(32, 2)
    )


@pytest.mark.parametrize("online", [True, False])
def test_online_streams_and_growing_heads(helpers, digits, online):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    if online:
        stream = split_online_stream(stream, experience_size=10, drop_last=False)
    model = helpers.model() if online else growing(helpers)
    strategy = train(tiny(helpers, model, lr=0.3, size=60), stream)
    x, y = digits
    model.eval()
    assert (model(x.float() / 255).argmax(1) == y).float().mean() > 0.4
    strategy.memory.close()


@pytest.mark.parametrize("swap", [True, False])
def test_it_remembers_and_trains_the_head(helpers, digits, swap):
    x, y = digits
    model = helpers.model()
    head = model[3].weight.clone()
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    strategy = train(tiny(helpers, model, lr=0.3, size=60, memory={"swap": swap}), stream)
    assert not torch.equal(model[3].weight, head)
    model.eval()
    assert (model(x.float() / 255).argmax(1) == y).float().mean() > 0.5
    assert (strategy.memory.carousel.stats().swaps.done > 0) == swap
    strategy.memory.close()


@pytest.mark.parametrize(("swap", "task_aware"), [(True, True), (True, False), (False, True)])
def test_a_run_resumes_within_an_experience(helpers, tmp_path, swap, task_aware):
    benchmark = to_benchmark(load_stream("split-digits", limit=40), task_labels=task_aware)

    def make(storage, plugins):
        model = growing(helpers)
        return make_strategy(
            "tiny-er",
            {"task_aware": task_aware},
            model=model,
            optimizer=helpers.sgd(model, 0.1, momentum=0.9),
            storage=storage,
            memory_size=20,
            sync=True,
            swap=swap,
            train_mb_size=10,
            plugins=plugins,
        )

    whole, parts = helpers.stop_and_go(make, tmp_path, benchmark.train_stream[:3], kill=13)
    assert helpers.same(whole, parts)
    assert (whole["swaps"].done > 0) == swap


def test_rules_that_do_not_fit_are_refused(helpers):
    for rules, fix in [
        ({"update": "experience"}, "leave update out"),
        ({"replay": "mixed"}, "leave replay out"),
    ]:
        with pytest.raises(BadInputError, match="TinyER") as caught:
            tiny(helpers, memory=rules)
        assert fix in caught.value.fix
