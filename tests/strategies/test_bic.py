"""BiC: its losses by hand, whose samples are held out, what is corrected when, what it learns."""

import copy
import math

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.scenarios import split_online_stream
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.models import IncrementalClassifier, MTSimpleMLP
from avalanche.training.plugins import SupervisedPlugin
from torch import nn

from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import CarMPlugin, RunCheckpoint, make_strategy
from carousel.strategies.bias import Line
from carousel.strategies.bic import BiC, distillation


def build(helpers, plugins=(), model=None, memory=None, **options):
    """BiC on a small memory; options of the memory by their names, the rest are the method's."""
    names = ("memory_size", "swap", "fast_loader", "tier", "swap_ratio", "sync")
    given = {name: options.pop(name) for name in names if name in options}
    given = {"memory_size": 40, "sync": True, "seed": 0, **given}
    size, tier = given.pop("memory_size"), given.pop("tier", None) or MemoryTier()
    model = helpers.model() if model is None else model
    return BiC(
        model=model,
        optimizer=helpers.sgd(model, 0.05, momentum=0.9),
        memory=memory or CarMPlugin(size, tier, **given),
        plugins=plugins,
        **{"train_mb_size": 32, "train_epochs": 2, **options},
    )


def learn(strategy, stream):
    for experience in stream:
        strategy.train(experience, eval_streams=[])
    return strategy


def accuracy(model, digits):
    x, y = digits
    model.eval()
    return (model(x.float() / 255).argmax(1) == y).float().mean().item()


def softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def test_distillation_by_hand():
    """Two samples, old classes 0 and 2; softmax runs over the classes of each sample."""
    student = torch.tensor([[1.0, 9.0, -1.0], [0.5, -9.0, 3.0]])
    teacher = torch.tensor([[2.0, 7.0, 0.0], [-1.0, 7.0, 1.0]])
    expected = 0.0
    for s, t in (((1.0, -1.0), (2.0, 0.0)), ((0.5, 3.0), (-1.0, 1.0))):
        p, q = softmax([v / 2 for v in t]), softmax([v / 2 for v in s])
        expected -= sum(a * math.log(b) for a, b in zip(p, q, strict=True)) / 2
    loss = distillation(student, teacher, torch.tensor([0, 2]), 2.0)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_distillation_pulls_towards_the_teacher_with_the_strength_one_over_t():
    """d loss / d logit = (softmax(student / T) - softmax(teacher / T)) / (T n)."""
    student = torch.randn(3, 4, requires_grad=True)
    teacher = torch.randn(3, 4)
    distillation(student, teacher, torch.arange(4), 2.0).backward()
    expected = ((student / 2).softmax(1) - (teacher / 2).softmax(1)) / 6
    assert torch.allclose(student.grad, expected, atol=1e-6)


class Steps(SupervisedPlugin):
    """Recomputes each step's loss from the paper's formula, and notes what it was trained on."""

    leaves_loss = True

    def __init__(self, share=None):
        super().__init__()
        self.share = share
        self.terms = []
        self.trained = []
        self.old = None

    def before_training_exp(self, strategy, **kwargs):
        self.old = strategy.model.seen.tolist()
        self.teacher = copy.deepcopy(strategy.model).eval()

    def before_backward(self, strategy, **kwargs):
        self.trained.append(strategy.mb_x.clone())
        logits, labels = strategy.mb_output, strategy.mb_y
        classes = set(torch.unique(strategy.memory.whole_source.labels).tolist())
        seen = sorted(set(self.old) | classes)
        kept = len(set(self.old) - classes)
        share = kept / len(seen) if self.share is None else self.share if self.old else 0.0
        picked = logits.softmax(1)[torch.arange(len(labels)), labels]
        over_seen = logits[:, seen].exp() / logits[:, seen].exp().sum(1, keepdim=True)
        position = torch.tensor([seen.index(label) for label in labels.tolist()])
        assert torch.allclose(picked, over_seen[torch.arange(len(labels)), position], atol=1e-6)
        expected = (1 - share) * -picked.log().mean()
        if share:
            with torch.no_grad():
                target = (self.teacher(strategy.mb_x)[:, self.old] / 2).softmax(1)
            log_q = (logits[:, self.old] / 2).log_softmax(1)
            expected = expected + share * -(target * log_q).sum(1).mean()
        assert torch.allclose(strategy.loss, expected, atol=1e-5)
        self.terms.append(share)


@pytest.mark.parametrize("weight", ["original", "incremental", 0.25, 0.0])
def test_the_loss_of_every_step_is_the_papers(helpers, weight):
    """The teacher is the last model in evaluation mode, so with its newest classes corrected."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    steps = Steps(weight if isinstance(weight, float) else None)
    strategy = build(helpers, [steps], distill_weight=weight)
    corrected = []
    for experience in stream[:4]:
        strategy.train(experience, eval_streams=[])
        corrected.append(strategy.model.alpha.item())
    strategy.memory.close()
    assert corrected[0] == 1.0
    assert 1.0 not in corrected[1:]
    shares = list(dict.fromkeys(steps.terms))
    expected = [0, 1 / 2, 2 / 3, 3 / 4] if steps.share is None else [0, weight]
    assert shares == list(dict.fromkeys(expected))


def test_stage_two_corrects_the_newest_classes_and_leaves_the_network_alone(helpers, stream):
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(32, 10),
    )  # fmt: skip
    strategy = build(helpers, model=model)
    calls = []
    correct_bias = strategy._correct_bias

    def spy():
        before = copy.deepcopy(strategy.model.net.state_dict())
        chance = torch.get_rng_state()
        assert (strategy.model.alpha.item(), strategy.model.beta.item()) == (1.0, 0.0)
        strategy.model.train()
        correct_bias()
        assert strategy.model.training
        assert torch.equal(chance, torch.get_rng_state())
        for key, value in strategy.model.net.state_dict().items():
            assert torch.equal(value, before[key])
        calls.append(strategy.model.newest.tolist())

    strategy._correct_bias = spy
    classes = [sorted(torch.unique(torch.tensor(e.dataset.targets)).tolist()) for e in stream[:3]]
    learn(strategy, stream[:3])
    strategy.memory.close()
    assert [sorted(newest) for newest in calls] == classes[1:]
    x = torch.randn(4, 1, 8, 8)
    model = strategy.model.eval()
    expected = model.net(x)
    newest = model.newest
    expected[:, newest] = model.alpha * expected[:, newest] + model.beta
    unseen = [label for label in range(10) if label not in model.seen]
    expected[:, unseen] = -1000
    assert torch.equal(model(x), expected)


def test_the_correction_is_learned_on_the_held_out_samples(helpers, stream):
    strategy = build(helpers, memory_size=100, bias_epochs=37, bias_lr=0.03, bias_l2=0.5)
    learn(strategy, stream[:2])
    strategy.memory.close()
    held_out, net = strategy.held_out, strategy.model.net.eval()
    logits = net(held_out.x.float() / 255).detach()
    logits[:, [c for c in range(10) if c not in strategy.model.seen.tolist()]] = -1000
    line = strategy._fit(logits, held_out.labels, strategy.model.newest, epochs=37)
    assert len(held_out) == 8
    assert line.alpha == pytest.approx(strategy.model.alpha.item(), abs=1e-5)
    assert line.beta == pytest.approx(strategy.model.beta.item(), abs=1e-5)


class Augments:
    """A transform of training only."""

    batched = True

    def __call__(self, x):
        return -x.float()


@pytest.mark.parametrize("plain", [True, False])
def test_held_out_samples_are_seen_as_in_evaluation(helpers, digits, plain):
    """Without augmentation; where the stream has no transform for evaluation, as in training."""
    x, y = digits
    groups = {"train": (Augments(), None), "eval": (helpers.ToFloat() if plain else None, None)}
    parts = [
        as_classification_dataset(helpers.tensor_set(x[rows], y[rows]), transform_groups=groups)
        for rows in (y < 2, (y > 1) & (y < 4))
    ]
    strategy = build(helpers)
    seen = []
    held_out_logits = strategy._held_out_logits

    def spy():
        handle = strategy.model.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
        logits = held_out_logits()
        handle.remove()
        return logits

    strategy._held_out_logits = spy
    learn(strategy, benchmark_from_datasets(train=parts).train_stream)
    strategy.memory.close()
    raw = strategy.held_out.x.float()
    assert torch.equal(torch.cat(seen), raw / 255 if plain else -raw)


def test_it_repairs_the_bias_towards_new_classes(helpers, digits):
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    strategy = learn(build(helpers, train_epochs=8), stream)
    strategy.memory.close()
    corrected = accuracy(strategy.model, digits)
    strategy.model.apply_line(Line())
    assert corrected > accuracy(strategy.model, digits) + 0.1
    assert corrected > 0.6


def test_every_layer_learns(helpers, stream):
    model = helpers.model()
    before = copy.deepcopy(model.state_dict())
    learn(build(helpers, model=model), stream[:2]).memory.close()
    for key, value in model.state_dict().items():
        assert not torch.equal(value, before[key])


def random_stream(helpers, seed):
    """Experiences of random classes, which may come back, of random sizes."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 256, (600, 1, 8, 8), dtype=np.uint8))
    x[:, 0, 0, 0] = torch.arange(600) % 256  # all distinct: two pixels hold the number
    x[:, 0, 0, 1] = torch.arange(600) // 256
    parts, first = [], 0
    for _ in range(4):
        size = int(rng.integers(20, 150))
        classes = rng.choice(10, rng.integers(1, 5), replace=False)
        y = torch.from_numpy(rng.choice(classes, size))
        groups = {"train": (helpers.ToFloat(), None), "eval": (helpers.ToFloat(), None)}
        data = helpers.tensor_set(x[first : first + size], y)
        parts.append(as_classification_dataset(data, transform_groups=groups))
        first += size
    return x, benchmark_from_datasets(train=parts).train_stream


def numbers(x):
    return set((x[:, 0, 0, 0].long() + 256 * x[:, 0, 0, 1].long()).tolist())


@pytest.mark.parametrize("seed", range(10))
def test_held_out_samples_are_nowhere_else(helpers, seed):
    """Not in a training batch, not in storage, not in a slot; and all fit the memory size."""
    _, stream = random_stream(helpers, seed)
    steps, tier = Steps(), MemoryTier()
    fast = "auto" if seed % 2 else False
    options = {"swap_ratio": 1.0, "fast_loader": fast, "sync": seed % 3 > 0}
    strategy = build(helpers, [steps], tier=tier, **options)
    carousel, ever_held = strategy.memory.carousel, set()
    for experience in stream:
        strategy.train(experience, eval_streams=[])
        held_out = strategy.held_out
        ever_held |= set(held_out.ids.tolist())
        residents = carousel.residents()
        assert len(residents) + len(held_out) <= 40
        assert carousel.capacity + len(held_out) == 40
        classes = len(strategy.model.seen)
        assert int(torch.bincount(held_out.labels).max()) <= max(1, 4 // classes)
        assert len(held_out) <= max(classes, 4)
        assert not ever_held & set(residents.ids.tolist())
        assert not ever_held & set(tier.entries().ids.tolist())
    assert ever_held
    assert len(tier.entries().ids) + len(ever_held) == sum(len(e.dataset) for e in stream)
    trained = numbers((torch.cat(steps.trained) * 255).round())
    assert not numbers(held_out.x) & trained
    assert len(trained) + len(ever_held) == sum(len(e.dataset) for e in stream)
    strategy.memory.close()


def test_too_small_a_memory_is_refused_before_training(helpers, stream):
    strategy = build(helpers, memory_size=19)
    before = copy.deepcopy(strategy.model.state_dict())
    with pytest.raises(BadInputError, match="19 slots for 10 classes") as error:
        strategy.train(stream[0], eval_streams=[])
    assert "20" in error.value.fix
    assert strategy.clock.train_iterations == 0
    assert len(strategy.memory.carousel.tier.entries()) == 0
    for key, value in strategy.model.state_dict().items():
        assert torch.equal(value, before[key])
    strategy.memory.close()


def test_a_size_in_bytes(helpers, stream):
    strategy = learn(build(helpers, memory_size="64KiB"), stream[:2])
    carousel = strategy.memory.carousel
    assert carousel.capacity + len(strategy.held_out) == carousel.slots
    assert len(strategy.held_out) == 4 * (carousel.slots // 10 // 4) > 4
    strategy.memory.close()
    small = build(helpers, memory_size="1KiB")
    with pytest.raises(BadInputError, match=r"slots for (2|10) classes"):
        learn(small, stream[:1])
    assert small.clock.train_iterations == 0
    small.memory.close()


@pytest.mark.parametrize("weight", ["original", 0.5])
def test_domain_incremental(helpers, digits, weight):
    """All classes return: the labels are still learned, and there is nothing to correct."""
    x, y = digits
    groups = {"train": (helpers.ToFloat(), None), "eval": (helpers.ToFloat(), None)}
    parts = [
        as_classification_dataset(
            helpers.tensor_set(x[i::3].rot90(i, (2, 3)), y[i::3]), transform_groups=groups
        )
        for i in range(3)
    ]
    stream = benchmark_from_datasets(train=parts).train_stream
    steps = Steps(None if weight == "original" else weight)
    strategy = learn(build(helpers, [steps], distill_weight=weight, train_epochs=8), stream)
    strategy.memory.close()
    assert strategy.model.newest.tolist() == []
    assert (strategy.model.alpha.item(), strategy.model.beta.item()) == (1.0, 0.0)
    assert accuracy(strategy.model, (x[2::3].rot90(2, (2, 3)), y[2::3])) > 0.8
    assert set(steps.terms) == ({0} if weight == "original" else {0, 0.5})


def test_online_streams(helpers, digits):
    benchmark = helpers.new_family(helpers.ToFloat())
    online = split_online_stream(benchmark.train_stream[:3], experience_size=30, drop_last=False)
    steps = Steps()
    strategy = learn(build(helpers, [steps], train_epochs=1), online)
    assert torch.bincount(strategy.held_out.labels).max() == 1
    assert len(strategy.held_out) == 6
    strategy.memory.close()


@pytest.mark.parametrize("replay", ["mixed", "concat"])
def test_growing_heads(helpers, digits, replay):
    stream = helpers.old_family(helpers.ToFloat()).train_stream
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), IncrementalClassifier(32, 2))
    memory = CarMPlugin(40, MemoryTier(), sync=True, seed=0, replay=replay)
    strategy = learn(build(helpers, model=model, memory=memory, train_epochs=8), stream)
    strategy.memory.close()
    assert accuracy(strategy.model, digits) > 0.55
    assert sorted(strategy.model.seen.tolist()) == list(range(10))


def test_avalanche_evaluates_the_corrected_model(helpers, digits):
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin

    benchmark = helpers.new_family(helpers.ToFloat())
    evaluator = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[])
    strategy = learn(build(helpers, evaluator=evaluator), benchmark.train_stream[:3])
    results = strategy.eval(benchmark.test_stream[:3])
    strategy.memory.close()
    rows = torch.isin(digits[1], strategy.model.seen)
    seen = (digits[0][rows], digits[1][rows])
    assert next(iter(results.values())) == pytest.approx(accuracy(strategy.model, seen), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"temperature": 0}, "temperature is 0"),
        ({"distill_weight": "half"}, "distill_weight is 'half'"),
        ({"validation": 0.0}, "validation is 0.0"),
        ({"bias_epochs": 0}, "bias_epochs is 0"),
        ({"bias_optimizer": "lion"}, "bias_optimizer is 'lion'"),
    ],
)
def test_values_out_of_range_are_refused(helpers, options, match):
    with pytest.raises(BadInputError, match=match):
        build(helpers, **options)


def test_unsuitable_models_and_memories_are_refused(helpers):
    with pytest.raises(BadInputError, match="a head a task"):
        build(helpers, model=MTSimpleMLP())
    with (
        CarMPlugin(40, MemoryTier(), update="batch") as memory,
        pytest.raises(BadInputError, match="update is 'batch'"),
    ):
        build(helpers, memory=memory)


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


def part_of_run(helpers, folder, stream, swap, kill=None):
    """One process's share of a run with dropout: from the newest checkpoint to a kill, or all."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), IncrementalClassifier(32, 2)
    )
    checkpoint = RunCheckpoint(folder / "checkpoints", every=5)
    strategy = make_strategy(
        "bic",
        {"temperature": 2.0, "bias_epochs": 20},
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        storage=folder / "db",
        memory_size=40,
        sync=True,
        swap=swap,
        train_mb_size=16,
        train_epochs=2,
        plugins=[checkpoint, *([Kill(kill)] if kill else [])],
    )
    torch.manual_seed(1)
    position = checkpoint.restore(strategy, stream)
    try:
        for experience in stream[position.experiences if position else 0 :]:
            strategy.train(experience, eval_streams=[])
    except Killed:
        pass
    finally:
        carousel = strategy.memory.carousel
        memory = carousel.stats().swaps, carousel.residents().ids.tolist()
        strategy.memory.close()
    return strategy, memory, position


@pytest.mark.parametrize("swap", [True, False])
def test_stopped_and_resumed_is_the_same_run(helpers, tmp_path, swap):
    """Killed in the first, a middle (twice) and the last experience, in the middle of an epoch."""
    family = helpers.new_family if swap else helpers.old_family
    stream = family(helpers.ToFloat()).train_stream
    whole, memory, _ = part_of_run(helpers, tmp_path / "whole", stream, swap)
    positions = []
    for kill in (8, 38, 42, whole.clock.train_iterations - 2, None):
        part, part_memory, position = part_of_run(helpers, tmp_path / "parts", stream, swap, kill)
        positions.append(position)
    assert sum(position is not None and position.within for position in positions) >= 3
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, part.model.state_dict()[key]), key
    assert whole.held_out.ids.tolist() == part.held_out.ids.tolist()
    assert torch.equal(whole.held_out.x, part.held_out.x)
    assert memory == part_memory
    assert (memory[0].done > 0) == swap


def test_an_experience_that_was_interrupted_is_taken_up_again(helpers):
    """Without a checkpoint: the same samples are held out, the same model teaches."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    kill = Kill(30)
    strategy = build(helpers, [kill])
    strategy.train(stream[0], eval_streams=[])
    kill.at = strategy.clock.train_iterations + 3
    with pytest.raises(Killed):
        strategy.train(stream[1], eval_streams=[])
    held, teacher = strategy.held_out.ids.tolist(), strategy._stage.teacher
    kill.at = strategy.clock.train_iterations + 4
    with pytest.raises(Killed):
        strategy.train(stream[1], eval_streams=[])
    assert strategy._stage.teacher is teacher
    kill.at = -1
    strategy.train(stream[1], eval_streams=[])
    assert strategy.held_out.ids.tolist() == held
    assert strategy.model.alpha.item() != 1.0
    assert len(strategy.model.seen) == 4
    strategy.memory.close()


@pytest.mark.parametrize("scarce", ["new", "old"])
def test_nothing_is_corrected_without_samples_of_both_kinds(helpers, digits, scarce):
    """A class of one sample has none for validation, and a line needs old and new ones."""
    x, y = digits
    few, many = ([2, 3], [0, 1]) if scarce == "new" else ([0, 1], [2, 3])
    rows = {c: (y == c).nonzero().squeeze(1)[: 1 if c in few else 20] for c in (0, 1, 2, 3)}
    parts = [torch.cat([rows[c] for c in pair]) for pair in ((0, 1), (2, 3))]
    sets = [
        as_classification_dataset(
            helpers.tensor_set(x[part], y[part]),
            transform_groups={name: (helpers.ToFloat(), None) for name in ("train", "eval")},
        )
        for part in parts
    ]
    strategy = learn(build(helpers), benchmark_from_datasets(train=sets).train_stream)
    assert strategy.held_out.labels.unique().tolist() == many
    assert (strategy.model.alpha.item(), strategy.model.beta.item()) == (1.0, 0.0)
    strategy.memory.close()
