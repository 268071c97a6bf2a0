"""What GDumb and Rainbow Memory share: CutMix and the gate, clipping, rates, a fresh optimizer."""

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin

from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import CarMPlugin, GDumb, RainbowMemory

KINDS = [GDumb, RainbowMemory]


def build(kind, helpers, *plugins, model=None, lr=0.05, memory=None, **options):
    memory = memory or CarMPlugin(20, MemoryTier(), sync=True, seed=0)
    model = model or helpers.model()
    options = {"train_mb_size": 8, "train_epochs": 3, **options}
    optimizer = helpers.sgd(model, lr, momentum=0.9)
    return kind(model=model, optimizer=optimizer, memory=memory, plugins=plugins, **options)


class Watch(SupervisedPlugin):
    """Notes what each step saw; a memory that asks no gate notes no swaps."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def before_forward(self, strategy, **_):
        self.clean = strategy.mb_x.clone()

    def before_backward(self, strategy, **_):
        mixed, memory = strategy._mixed, strategy.memory
        self.steps.append(
            {
                "epoch": strategy.clock.train_exp_epochs,
                "lr": strategy.optimizer.param_groups[0]["lr"],
                "clean": self.clean,
                "x": strategy.mb_x.clone(),
                "y": strategy.mb_y.clone(),
                "kept": None if mixed is None else mixed.kept,
                "partner": None if mixed is None else mixed.partner,
                "output": strategy.mb_output.detach().clone(),
                "loss": strategy.loss.item(),
                "requested": memory.carousel.stats().swaps.requested,
                "rows": len(strategy.mb_y) - memory.stream_rows,
            }
        )

    def after_backward(self, strategy, **_):
        self.steps[-1]["norm"] = _norm(strategy.model)

    def after_update(self, strategy, **_):
        self.steps[-1]["clipped"] = _norm(strategy.model)


def _norm(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()


def train(strategy, stream, count=2):
    for experience in stream[:count]:
        strategy.train(experience, eval_streams=[])
    strategy.memory.close()
    return strategy


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_mixed_steps(helpers, stream, kind):
    watch = Watch()
    train(build(kind, helpers, watch, clip=None), stream)
    assert 0.3 < sum(step["kept"] is not None for step in watch.steps) / len(watch.steps) < 0.7
    ce = torch.nn.functional.cross_entropy
    for step in watch.steps:
        expected = ce(step["output"], step["y"])
        if step["kept"] is None:
            assert torch.equal(step["x"], step["clean"])
        else:
            other = ce(step["output"], step["y"][step["partner"]])
            expected = step["kept"] * expected + (1 - step["kept"]) * other
            box = step["x"] != step["clean"]
            assert torch.equal(step["x"][box], step["clean"][step["partner"]][box])
        assert step["loss"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_skipped_steps_ask_for_no_swaps(helpers, stream, kind):
    """Before a step's backward pass the counter holds what the step asked for in sync mode."""
    watch = Watch()
    train(build(kind, helpers, watch, gate_on_mixed="skip"), stream)
    asked = 0
    for step in watch.steps:
        judged = step["kept"] is None and not (kind is RainbowMemory and step["epoch"] == 0)
        asked += -(-step["rows"] // 2) if judged else 0
        assert step["requested"] == asked
    assert asked > 0


class Judged(SupervisedPlugin):
    """Notes what reaches the gate, beside what the step gave."""

    def __init__(self):
        super().__init__()
        self.pairs = []

    def before_training_exp(self, strategy, **_):
        carousel, observe = strategy.memory.carousel, strategy.memory.carousel.observe
        if getattr(carousel.observe, "spy", False):
            return

        def spy(replay, logits, losses=None):
            self.pairs.append(
                (strategy._mixed is not None, logits, strategy.mb_output, self.in_evaluation)
            )
            observe(replay, logits, losses)

        spy.spy = True
        carousel.observe = spy

    def before_forward(self, strategy, **_):
        model = strategy.model
        model.eval()
        with torch.no_grad():
            self.in_evaluation = model(strategy.mb_x)
        model.train()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("choice", ["skip", "clean", "as_is"])
def test_what_the_gate_sees_of_mixed_steps(helpers, stream, kind, choice):
    torch.manual_seed(0)
    model = torch.nn.Sequential(helpers.model(), torch.nn.Dropout(0.5))
    judged = Judged()
    strategy = build(kind, helpers, judged, model=model, gate_on_mixed=choice)
    train(strategy, stream, count=1)
    assert strategy.model.training
    assert {mixed for mixed, *_ in judged.pairs} == ({False} if choice == "skip" else {False, True})
    for mixed, logits, output, clean in judged.pairs:
        expected = clean if mixed and choice == "clean" else output
        assert torch.equal(logits, expected.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_clipped(helpers, stream, kind):
    watch = Watch()
    train(build(kind, helpers, watch, clip=0.5), stream)
    assert any(step["norm"] > 0.6 for step in watch.steps)
    for step in watch.steps:
        assert step["clipped"] == pytest.approx(min(step["norm"], 0.5), rel=1e-3)


def test_rates(helpers, stream):
    """GDumb warms up once; Rainbow Memory over the stream, and again on the memory."""
    for kind, shares in ((GDumb, [0.1, 1, 1, 0.505]), (RainbowMemory, [0.1, 0.1, 1, 1, 0.505])):
        watch = Watch()
        strategy = train(build(kind, helpers, watch, lr=0.2, train_epochs=len(shares)), stream)
        rates = {(step["epoch"], round(step["lr"], 9)) for step in watch.steps}
        assert rates == {(epoch, round(0.2 * share, 9)) for epoch, share in enumerate(shares)}
        assert strategy.train_epochs == len(shares)
        watch = Watch()
        train(build(kind, helpers, watch, lr=0.2, schedule="constant"), stream)
        assert {step["lr"] for step in watch.steps} == {0.2}


@pytest.mark.parametrize("kind", KINDS)
def test_momentum_does_not_outlive_an_experience(helpers, stream, kind):
    found = []

    class Momentum(SupervisedPlugin):
        def before_training_epoch(self, strategy, **_):
            found.append(len(strategy.optimizer.state))

    train(build(kind, helpers, Momentum(), train_epochs=2), stream)
    assert found == [0, 4, 0, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_neither_mixed_nor_augmented(helpers, stream, kind):
    strategy = train(build(kind, helpers, cutmix_p=1.0), stream, count=1)
    seen = []

    class Sees(SupervisedPlugin):
        def after_eval_forward(self, strategy, **_):
            strategy.model.eval()
            seen.append(torch.equal(strategy.mb_output, strategy.model(strategy.mb_x)))
            assert strategy.loss is not None

    strategy.plugins.insert(0, Sees())
    strategy.eval(stream[:1])
    assert seen
    assert all(seen)
    assert strategy._mixed is None


def test_augmentation_is_of_training_only(helpers, stream):
    calls = []

    def darken(x, rng):
        calls.append(rng.random())
        return x * 0

    watch = Watch()
    strategy = build(RainbowMemory, helpers, watch, augment=darken)
    train(strategy, stream, count=1)
    assert len(calls) == len(watch.steps) == len(set(calls))
    assert all(step["x"].abs().max() == 0 for step in watch.steps)
    strategy.eval(stream[:1])
    assert len(calls) == len(watch.steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clip": 0}, "clip is 0"),
        ({"schedule": "cosine"}, "schedule is 'cosine'"),
        ({"gate_on_mixed": "never"}, "gate_on_mixed is 'never'"),
        ({"cutmix_p": 2}, "cutmix_p is 2"),
        ({"memory": {"update": "batch"}}, "update is 'batch', with which"),
        ({"memory": {"replay": "mixed"}}, "replay is 'mixed', with which"),
    ],
)
def test_bad_options(helpers, kind, options, match):
    options = dict(options)
    memory = CarMPlugin(20, MemoryTier(), **options.pop("memory", {}))
    with memory, pytest.raises(BadInputError, match=match):
        build(kind, helpers, memory=memory, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_without_an_area_are_refused_before_anything_is_saved(helpers, kind):
    x, y = torch.rand(40, 64), torch.arange(40) % 4
    stream = helpers.new_family(x=x, y=y, experiences=2).train_stream
    options = {"perturb": lambda x, rng: x} if kind is RainbowMemory else {}
    strategy = build(kind, helpers, **options)
    with pytest.raises(BadInputError, match=r"shape \(64,\).*cutmix_p=0"):
        strategy.train(stream[0], eval_streams=[])
    assert strategy.memory.carousel.schema is None
    strategy.memory.close()
    train(build(kind, helpers, cutmix_p=0, **options), stream)
