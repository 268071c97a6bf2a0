"""ER and its bounds: losses by hand, the lean loop against Avalanche's, and what they learn."""

import math

import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin, LwFPlugin, SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate

from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import ER, CarMPlugin, FastLoader, Joint, LeanTemplate, Naive
from carousel.strategies.loss import SeenClassesBCE, make_loss


def test_bce_by_hand():
    """Two rows, classes 0, 2 and 3 seen; class 1 takes no part."""
    logits = torch.tensor([[0.5, 9.0, -1.0, 0.0], [2.0, -9.0, 0.0, 1.0]])
    loss = SeenClassesBCE()
    loss.see(torch.tensor([3, 0, 2, 0]))

    def softplus(x):
        return math.log1p(math.exp(x))

    expected = (
        softplus(-0.5)
        + softplus(-1.0)
        + softplus(0.0)  # label 0: -ln s(.5), -ln(1 - s(-1)), ...
        + softplus(2.0)
        + softplus(0.0)
        + softplus(-1.0)  # label 3
    ) / 6
    assert loss(logits, torch.tensor([0, 3])).item() == pytest.approx(expected, abs=1e-6)
    other = SeenClassesBCE()
    other.load_state_dict(loss.state_dict())
    assert other.classes.tolist() == [0, 2, 3]


def test_unknown_losses_are_refused(helpers):
    with pytest.raises(BadInputError, match="loss is 'mse'"):
        make_loss("mse")


def build(helpers, kind, plugins=(), lr=0.1, **options):
    model = helpers.model()
    common = {"model": model, "optimizer": helpers.sgd(model, lr), "train_mb_size": 16}
    if kind is ER:
        return ER(**common, plugins=plugins, **options)
    return kind(
        **common,
        criterion=make_loss("ce"),
        plugins=[FastLoader(), *plugins],
        evaluator=None,
        **options,
    )


def accuracy(strategy, digits, helpers):
    x, y = digits
    strategy.model.eval()
    return (strategy.model(x.float() / 255).argmax(1) == y).float().mean().item()


@pytest.mark.parametrize("loss", ["ce", "bce"])
@pytest.mark.parametrize("replay", ["concat", "mixed"])
def test_er_remembers(helpers, digits, stream, loss, replay):
    scores = {}
    lr = {"ce": 0.1, "bce": 1.0}[loss]
    for name in ("er", "naive"):
        if name == "er":
            memory = CarMPlugin(100, MemoryTier(), replay=replay, sync=True, seed=0)
            strategy = build(helpers, ER, memory=memory, loss=loss, lr=lr, train_epochs=4)
        else:
            strategy = build(helpers, Naive, train_epochs=4)
        for experience in stream:
            strategy.train(experience, eval_streams=[])
        scores[name] = accuracy(strategy, digits, helpers)
        if strategy.memory is not None:
            assert strategy.memory.carousel.stats().swaps.done > 0
            strategy.memory.close()
    assert scores["er"] > scores["naive"] + 0.2
    assert scores["er"] > 0.5


def test_joint_is_the_upper_bound(helpers, digits, stream):
    joint = build(helpers, Joint, train_epochs=4)
    sizes = []
    for experience in stream:
        joint.train(experience, eval_streams=[])
        sizes.append(sum(len(data) for data in joint._past.values()))
    assert sizes[-1] == 600
    assert sizes == sorted(set(sizes))
    assert accuracy(joint, digits, helpers) > 0.85
    assert joint.memory is None


class Spy(SupervisedPlugin):
    """Notes every event, and what the strategy held."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __getattribute__(self, name):
        if name.startswith(("before_", "after_")):
            events = super().__getattribute__("events")

            def note(strategy, **kwargs):
                events.append((name, round(float(strategy.loss.detach().sum()), 6)))

            return note
        return super().__getattribute__(name)


def distillation(stream):
    """Avalanche's LwF reads task labels, which the new family does not have."""
    return [LwFPlugin()] if hasattr(stream[0], "task_labels") else []


@pytest.mark.parametrize("evaluated", [False, True])
def test_the_lean_loop_is_avalanches(helpers, stream, evaluated):
    """Same events in the same order, same losses, same weights, with and without metrics."""
    outcome = []
    for template in (SupervisedTemplate, LeanTemplate):
        spy = Spy()
        model = helpers.model()
        evaluator = EvaluationPlugin(
            accuracy_metrics(minibatch=True, epoch=True), loss_metrics(minibatch=True), loggers=[]
        )
        strategy = template(
            model=model,
            optimizer=helpers.sgd(model),
            criterion=torch.nn.CrossEntropyLoss(),
            train_mb_size=16,
            train_epochs=2,
            plugins=[FastLoader(), spy, *distillation(stream)],
            evaluator=evaluator if evaluated else None,
        )
        torch.manual_seed(0)
        for experience in stream[:2]:
            strategy.train(experience, eval_streams=[])
        values = [(k, v[1]) for k, v in sorted(strategy.evaluator.get_all_metrics().items())]
        outcome.append((spy.events, values, strategy.clock.train_iterations, model.state_dict()))
    assert outcome[0][0] == outcome[1][0]
    assert outcome[0][1] == outcome[1][1]
    assert bool(outcome[0][1]) == evaluated
    assert outcome[0][2] == outcome[1][2]
    for key, value in outcome[0][3].items():
        assert torch.equal(value, outcome[1][3][key])


def test_a_plugin_that_adds_to_the_loss_is_heard(helpers, stream):
    """Also when nobody else makes the loop keep a zero to add to."""

    class Adds(SupervisedPlugin):
        def before_forward(self, strategy, **kwargs):
            strategy.loss += 5.0

    seen = []

    class Sees(SupervisedPlugin):
        leaves_loss = True

        def before_backward(self, strategy, **kwargs):
            seen.append(float(strategy.loss.detach()))

    strategy = build(helpers, Naive, plugins=[Adds(), Sees()])
    strategy.train(stream[0], eval_streams=[])
    assert min(seen) > 5.0


def test_training_can_be_stopped(helpers, stream):
    class Stops(SupervisedPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            strategy.stop_training()

    strategy = build(helpers, Naive, plugins=[Stops()])
    strategy.train(stream[0], eval_streams=[])
    assert strategy.clock.train_iterations == 1
