"""16-bit parameters are rounded from fp32 masters that fp32 AdamW would have given."""

import pytest
import torch

from carousel.errors import BadInputError
from carousel.offload import TieredAdamW


class Reference:
    """Masters under torch's fused AdamW in fp32, fed the gradients cast to fp32."""

    def __init__(self, twins, dtype):
        self.twins = twins
        self.params = twins.params(dtype=dtype)
        self.masters = [torch.nn.Parameter(p.detach().float()) for p in self.params]
        self.optimizer = torch.optim.AdamW(twins.groups(self.masters), fused=True)

    def train(self, steps, first=0):
        for step in range(first, first + steps):
            self.twins.gradients(self.params, step)
            for master, param in zip(self.masters, self.params, strict=True):
                master.grad = None if param.grad is None else param.grad.float()
            self.optimizer.step()
            with torch.no_grad():
                for master, param in zip(self.masters, self.params, strict=True):
                    param.copy_(master)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [False, True], ids=["ram", "file"])
def test_masters_are_those_of_fp32(twins, tmp_path, dtype, stored):
    options = {"storage": tmp_path / "s", "ram_budget": "450KiB", "chunk_numel": 4096}
    mine, ours = twins.ours(twins.params(dtype=dtype), **options if stored else {})
    reference = Reference(twins, dtype)
    twins.train(mine, ours, 8)
    reference.train(8)
    assert twins.same(mine, reference.params)
    full, masters = ours._book.states_of(range(len(mine)), ours.state)
    for number, (param, master) in enumerate(zip(mine, reference.masters, strict=True)):
        assert torch.equal(masters[number], master)
        kept = reference.optimizer.state[master]
        assert all(torch.equal(full[param][name], kept[name]) for name in kept)
    ours.close()
    if stored:
        again = twins.params(7, dtype=dtype)
        more = TieredAdamW.resume(twins.groups(again), tmp_path / "s")
        assert twins.same(again, mine)
        twins.train(again, more, 3, first=8)
        reference.train(3, first=8)
        assert twins.same(again, reference.params)
        more.close()


def test_masters_travel_in_the_state_dict(twins):
    mine, ours = twins.ours(twins.params(dtype=torch.bfloat16))
    twins.train(mine, ours, 3)
    saved = ours.state_dict()
    assert set(saved) == {"state", "param_groups", "masters"}
    again = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    _, other = twins.ours(again)
    other.load_state_dict(saved)
    for params, optimizer in ((mine, ours), (again, other)):
        twins.train(params, optimizer, 3, first=3)
    assert twins.same(mine, again)
    torch.optim.AdamW(twins.groups(again)).load_state_dict(saved)


def test_small_steps_are_not_lost():
    param = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    ours = TieredAdamW([param], lr=1e-4, weight_decay=0)
    for _ in range(100):
        param.grad = torch.ones_like(param)
        ours.step()
    assert float(param[0].detach()) == pytest.approx(0.99, abs=0.004)


def test_gradients_may_be_wider(twins):
    params = twins.params(dtype=torch.bfloat16)
    ours = TieredAdamW(params)
    for param in params:
        param.grad_dtype = torch.float32
        param.grad = torch.full(param.shape, 1e-3, dtype=torch.float32)
    ours.step()
    full, _ = ours._book.states_of([0], ours.state)
    assert float(full[params[0]]["exp_avg"][0]) == pytest.approx(1e-4, rel=1e-6)


def test_without_masters_it_is_torch_in_16_bits(twins):
    mine, ours = twins.ours(twins.params(dtype=torch.bfloat16), master="none")
    theirs, reference = twins.torch(twins.params(dtype=torch.bfloat16))
    twins.train(mine, ours, 5)
    twins.train(theirs, reference, 5)
    assert twins.same(mine, theirs)
    twins.same_state(reference.state_dict(), ours.state_dict())


def test_both_kinds_together(twins, tmp_path):
    mine = twins.params()[:3] + twins.params(dtype=torch.bfloat16)[3:]
    theirs = twins.params()[:3]
    reference = torch.optim.AdamW(theirs, fused=True)
    with TieredAdamW(mine, storage=tmp_path, ram_budget="800KiB") as ours:
        twins.train(mine, ours, 5)
    twins.train(theirs, reference, 5)
    assert twins.same(mine[:3], theirs)


def test_a_gradient_of_another_dtype_is_refused(twins):
    (param,) = params = [torch.nn.Parameter(torch.ones(3))]
    ours = TieredAdamW(params)
    param.grad_dtype = None
    param.grad = torch.ones(3, dtype=torch.float64)
    with pytest.raises(BadInputError, match="float64"):
        ours.step()
    assert not ours.state
