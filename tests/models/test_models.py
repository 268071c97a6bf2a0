"""Models: shapes, sizes known from the literature, seeding, and names that are none."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

from carousel.errors import BadInputError
from carousel.models import MODELS, list_models, make_model
from carousel.models.mlp import MLP

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 5, 7), (2, 1, 1)]


def parameters(model):
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_gradients_for_any_image(name, shape):
    model = make_model(name, shape, 7, seed=0)
    logits = model(torch.randn(4, *shape))
    assert logits.shape == (4, 7)
    logits.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_sizes_are_those_of_the_literature():
    assert parameters(make_model("mlp", (1, 28, 28), 10)) == 784 * 100 + 100 + 100 * 10 + 10
    # 464,154 with shortcuts without weights (He et al.) plus two projections
    assert parameters(make_model("resnet32", (3, 32, 32), 10)) == 464_154 + 2_752
    # the reduced ResNet-18 of GEM, as Avalanche's SlimResNet18 counts it
    assert parameters(make_model("slim-resnet18", (3, 32, 32), 10)) == 1_094_750
    assert parameters(make_model("resnet18", (3, 32, 32), 10)) == 11_173_962
    # torchvision's resnet18 has 11,689,512 for 1,000 classes
    assert parameters(make_model("resnet18-imagenet", (3, 224, 224), 1000)) == 11_689_512
    # "0.8M" in table 2 of Huang et al.; 769,162 in public implementations
    assert parameters(make_model("densenet-bc-100-12", (3, 32, 32), 10)) == 769_162
    assert 20_000 < parameters(make_model("cnn", (1, 28, 28), 94)) < 70_000


def test_the_large_stem_is_that_of_torchvision():
    from torchvision.models import resnet18

    ours = make_model("resnet18-imagenet", (3, 64, 64), 5, seed=0).eval()
    theirs = resnet18(num_classes=5).eval()
    weights = zip(theirs.state_dict().items(), ours.state_dict().values(), strict=True)
    theirs.load_state_dict({name: value for (name, _), value in weights})
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), theirs(x))


def test_a_dense_layer_keeps_what_it_was_given():
    model = make_model("densenet-bc-100-12", (3, 8, 8), 5, seed=0).eval()
    stem, layer = model.features[0], model.features[1]
    maps = stem(torch.randn(2, 3, 8, 8))
    assert torch.equal(layer(maps)[:, :24], maps)
    assert layer(maps).shape == (2, 36, 8, 8)


def test_hidden_layers_are_an_option():
    assert parameters(MLP((1, 2, 2), 3, hidden=(5, 6))) == (4 * 5 + 5) + (5 * 6 + 6) + (6 * 3 + 3)
    assert parameters(MLP((1, 2, 2), 3, hidden=())) == 4 * 3 + 3


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_repeats_the_weights_and_leaves_the_global_generator(name):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again = (make_model(name, (1, 8, 8), 4, seed=3) for _ in range(2))
    other = make_model(name, (1, 8, 8), 4, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    weights = [model.classifier.weight for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    make_model(name, (1, 8, 8), 4)
    assert not torch.equal(torch.random.get_rng_state(), before)


def test_every_model_says_what_it_is():
    described = list_models()
    named = ["mlp", "cnn", "slim-resnet18", "resnet32"]
    assert list(described) == [*named, "resnet18", "resnet18-imagenet", "densenet-bc-100-12"]
    assert all(len(line) > 20 for line in described.values())


@pytest.fixture
def user_module(monkeypatch):
    module = types.ModuleType("user_models")
    module.tiny = lambda shape, classes: nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes)
    )
    module.number = 3
    module.no_module = lambda shape, classes: "a string"
    monkeypatch.setitem(sys.modules, "user_models", module)


@pytest.mark.usefixtures("user_module")
def test_a_factory_of_the_users_own():
    model = make_model("user_models:tiny", (3, 4, 4), 5, seed=0)
    assert model(torch.zeros(2, 3, 4, 4)).shape == (2, 5)


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet-32", "did you mean resnet32"),
        ("nothing", "use one of mlp, cnn"),
        ("no_such_module:make", "cannot be imported"),
        ("user_models:missing", "cannot be imported"),
        (":make", "cannot be imported"),
        ("user_models:number", "name a callable"),
        ("user_models:no_module", "built a str"),
        ("os:getcwd", r"takes \(input_shape, n_classes\)"),
        ("os.path:join", r"takes \(input_shape, n_classes\)"),
    ],
)
def test_names_that_are_none_say_what_to_do(name, message):
    with pytest.raises(BadInputError, match=message):
        make_model(name, (1, 8, 8), 10)


@pytest.mark.parametrize("shape", [(28, 28), (1, 0, 28), (1, 1, 28, 28), ()])
def test_a_shape_that_is_no_image_is_refused(shape):
    with pytest.raises(BadInputError, match="input_shape is"):
        make_model("cnn", shape, 10)


def test_no_classes_are_refused():
    with pytest.raises(BadInputError, match="n_classes is 0"):
        make_model("cnn", (1, 8, 8), 0)
