"""The weights that a model started with."""

import torch
from avalanche.models import IncrementalClassifier
from torch import nn

from carousel.strategies.initial import InitialWeights


def test_weights_and_running_statistics_come_back_in_place():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    initial, weight = InitialWeights(model), model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert model[1].num_batches_tracked == 1
    initial.put_back(model)
    assert model[0].weight is weight
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_grows_keeps_its_first_values():
    """Rows 0 and 1 from the start, 2 to 4 from the second experience; their mask stays."""

    class Experience:
        def __init__(self, *classes):
            self.classes_in_this_experience = classes

    head = IncrementalClassifier(3, 2)
    initial = InitialWeights(head)
    first = head.classifier.weight.detach().clone()
    head.adaptation(Experience(0, 1))
    initial.take(head)
    head.classifier.weight.data += 1
    initial.put_back(head)
    head.adaptation(Experience(2, 4))
    second = head.classifier.weight.detach().clone()
    initial.take(head)
    assert torch.equal(second[:2], first)
    head.classifier.weight.data += 1
    initial.put_back(head)
    assert torch.equal(head.classifier.weight, second)
    assert head.active_units.tolist() == [1, 1, 1, 0, 1]

    # grown by an evaluation since: what was there comes back, the new rows stay fresh
    head.classifier.weight.data += 1
    head.eval().adaptation(Experience(6))
    fresh = head.classifier.weight[5:].detach().clone()
    initial.put_back(head)
    assert torch.equal(head.classifier.weight, torch.cat((second, fresh)))


def test_a_state_brings_them_to_another_process():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    initial, elsewhere = InitialWeights(model), InitialWeights(other)
    elsewhere.load_state_dict(initial.state_dict())
    elsewhere.put_back(other)
    assert torch.equal(other.weight, model.weight)
