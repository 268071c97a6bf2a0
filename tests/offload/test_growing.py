"""Avalanche replaces and appends parameters in place; the states follow, bit for bit."""

import pytest
import torch
from avalanche.benchmarks.utils import as_classification_dataset  # noqa: F401 - loads the rest
from avalanche.models import IncrementalClassifier
from avalanche.models.dynamic_optimizers import update_optimizer
from torch.nn.functional import cross_entropy

from carousel.offload import TieredAdamW

MODES = {
    "ram": {},
    "file": {"ram_budget": "160KiB", "chunk_numel": 1024},
    "ephemeral": {"ram_budget": "160KiB", "chunk_numel": 1024, "durability": "ephemeral"},
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(20, 200)
        self.head = IncrementalClassifier(200, 2, masking=False)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def learn(make, *, reset):
    """Four experiences, with two classes more in each, as Avalanche's strategies do it."""
    torch.manual_seed(0)
    net = Net()
    optimizer = make(net.parameters())
    known = update_optimizer(optimizer, dict(net.named_parameters()), None, reset_state=True)
    for number in range(4):
        fresh = torch.nn.Linear(200, 2 * number + 2)
        net.head.classifier = fresh
        if number == 2:
            net.extra = torch.nn.Linear(200, 3)
        params = dict(net.named_parameters())
        known = update_optimizer(optimizer, params, known, reset_state=reset)
        for step in range(3):
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(10 * number + step))
            optimizer.zero_grad()
            cross_entropy(net(x), torch.arange(8) % (2 * number + 2)).backward()
            optimizer.step()
    return net, optimizer


@pytest.mark.parametrize("reset", [False, True], ids=["kept", "reset"])
@pytest.mark.parametrize("mode", MODES)
def test_a_head_that_grows(mode, reset, tmp_path):
    options = MODES[mode] if mode == "ram" else MODES[mode] | {"storage": tmp_path / "s"}
    mine, ours = learn(lambda params: TieredAdamW(params, 0.01, **options), reset=reset)
    theirs, reference = learn(
        lambda params: torch.optim.AdamW(params, 0.01, fused=True), reset=reset
    )
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
    made, _ = ours._book.states_of(range(6), ours.state)
    expected = {p: kept for p, kept in reference.state.items() if kept}
    assert len(made) == len(expected) == 4
    for ours_kept, kept in zip(
        (made[p] for p in ours._book.roster.params if p in made),
        (expected[p] for p in reference.param_groups[0]["params"] if p in expected),
        strict=True,
    ):
        assert all(torch.equal(ours_kept[name], kept[name]) for name in kept)
    assert ours.stats().moves == 4
    ours.close()
    if mode == "file":
        again = [torch.nn.Parameter(torch.zeros_like(p)) for p in ours._book.roster.params]
        TieredAdamW.resume(again, tmp_path / "s").close()
        for a, b in zip(again, ours._book.roster.params, strict=True):
            assert torch.equal(a, b) or not ours.state.get(b)


def test_the_gradient_of_a_new_parameter_is_clipped_with_the_others():
    params = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(5))]
    ours = TieredAdamW(params[:1], clip_norm=0.5)
    ours.add_param_group({"params": params[1:]})
    for param in params:
        param.grad = torch.full_like(param, 7.0)
    ours.step()
    norm = torch.cat([param.grad for param in params]).norm()
    torch.testing.assert_close(norm, torch.tensor(0.5))
