"""What a program with a GPU sets around the optimizer: a default device or dtype, numbers there.

Of the host's own tensors none may go to where the model is made, or be of its precision.
"""

from contextlib import contextmanager

import pytest
import torch

from carousel.offload import TieredAdamW


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SURROUNDINGS = {
    "device": lambda: torch.device("meta"),
    "dtype": lambda: default_dtype(torch.bfloat16),
}
"""A tensor on ``meta`` has no content, so whatever is made there by mistake cannot be used."""


def grown(twins, folder, dtype, around):
    """Parameters and state after steps, a state_dict, an export, and a recovery."""
    params, gradients = twins.params(dtype=dtype), []
    for step in range(4):
        twins.gradients(params, step)
        gradients.append([param.grad for param in params])
    groups, options = twins.groups(params), {"chunk_numel": 1024, "ram_budget": "300KiB"}
    again, other = twins.params(7, dtype=dtype), twins.params(dtype=dtype)

    def train(optimizer, params, steps):
        for step in steps:
            for param, grad in zip(params, gradients[step], strict=True):
                param.grad = None if grad is None else grad.clone()
            optimizer.step()

    with around():
        with TieredAdamW(groups, storage=folder / "s", **options) as optimizer:
            train(optimizer, params, range(2))
            optimizer.export(folder / "exported")
        more = TieredAdamW.resume(twins.groups(again), folder / "s", ram_budget="300KiB")
        train(more, again, [2])
        more.export(folder / "later")
        third = TieredAdamW(twins.groups(other))
        third.import_(folder / "later")
        train(third, other, [3])
        state = third.state_dict()
        more.close()
    return params + again + other, state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("around", SURROUNDINGS)
def test_the_default_device_and_dtype_make_no_difference(twins, tmp_path, dtype, around):
    found = []
    for name, entered in (("plain", lambda: default_dtype(torch.float32)), ("set", None)):
        (tmp_path / name).mkdir()
        found.append(grown(twins, tmp_path / name, dtype, entered or SURROUNDINGS[around]))
    (theirs, reference), (mine, state) = found
    assert twins.same(theirs, mine)
    twins.same_state(reference, state)


class Elsewhere(torch.Tensor):
    """A number on a device: it can be brought to the host, and no kernel of the host takes it."""

    @staticmethod
    def __new__(cls, value):
        made = torch.Tensor._make_wrapper_subclass(cls, (), dtype=torch.float32, device="meta")
        made.value = value
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            return args[0].value
        if function is torch.ops.aten._to_copy.default:
            return torch.tensor(args[0].value)
        raise RuntimeError(f"{function} was given a number on a device")


def test_hyper_parameters_may_be_on_the_device(twins):
    mine, ours = twins.ours(lr=Elsewhere(0.25), betas=(Elsewhere(0.5), Elsewhere(0.75)))
    theirs, host = twins.ours(lr=0.25, betas=(0.5, 0.75))
    for params, optimizer in ((mine, ours), (theirs, host)):
        twins.train(params, optimizer, 3)
    assert twins.same(mine, theirs)


def test_so_may_what_a_scaler_says(twins):
    mine, ours = twins.ours()
    theirs, host = twins.ours()
    for step in range(4):
        for params in (mine, theirs):
            twins.gradients(params, step)
        for param in mine:
            if param.grad is not None:
                param.grad *= 8
        ours.grad_scale, ours.found_inf = Elsewhere(8.0), Elsewhere(float(step == 2))
        ours.step()
        if step != 2:
            host.step()
    assert twins.same(mine, theirs)
    twins.same_state(ours.state_dict(), host.state_dict())
