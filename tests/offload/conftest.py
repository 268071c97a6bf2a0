"""Parameters and gradients that follow from a seed, and torch's own optimizer beside ours."""

from __future__ import annotations

import pytest
import torch

from carousel.offload import TieredAdamW

SHAPES = ((1,), (7,), (63,), (1001,), (257, 64), (129, 131))


class Twins:
    """The same training twice: under torch's fused AdamW and under ours."""

    shapes = SHAPES

    def params(self, seed=0, dtype=torch.float32):
        numbers = torch.Generator().manual_seed(seed)
        return [
            torch.nn.Parameter(torch.randn(shape, generator=numbers).to(dtype))
            for shape in self.shapes
        ]

    def groups(self, params):
        return [
            {"params": params[:2]},
            {"params": params[2:4], "lr": 3e-3, "weight_decay": 0.0},
            {"params": params[4:], "betas": (0.8, 0.95), "weight_decay": 0.1},
        ]

    def gradients(self, params, step, *, gaps=True):
        numbers = torch.Generator().manual_seed(1000 + step)
        for number, param in enumerate(params):
            grad = torch.randn(param.shape, generator=numbers)
            missing = gaps and (step + number) % 4 == 0
            param.grad = None if missing else grad.to(param.dtype)

    def train(self, params, optimizer, steps, *, first=0, gaps=True, after=None):
        for step in range(first, first + steps):
            self.gradients(params, step, gaps=gaps)
            optimizer.step()
            if after is not None:
                after(step)

    def torch(self, params=None, **options):
        params = self.params() if params is None else params
        return params, torch.optim.AdamW(self.groups(params), fused=True, **options)

    def ours(self, params=None, **options):
        params = self.params() if params is None else params
        return params, TieredAdamW(self.groups(params), **options)

    @staticmethod
    def same(a, b):
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    @staticmethod
    def same_state(a, b):
        assert a["param_groups"] == b["param_groups"]
        assert a["state"].keys() == b["state"].keys()
        for key, kept in a["state"].items():
            assert kept.keys() == b["state"][key].keys()
            for name, value in kept.items():
                other = b["state"][key][name]
                assert (value.dtype, value.shape) == (other.dtype, other.shape)
                assert torch.equal(value, other), (key, name)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def twins():
    return Twins()
