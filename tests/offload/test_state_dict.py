"""state_dict goes to torch and comes from torch, and training goes on bit for bit."""

import pytest
import torch

from carousel.errors import BadInputError
from carousel.offload import TieredAdamW


@pytest.fixture(params=["ram", "file", "ephemeral"])
def options(request, tmp_path):
    if request.param == "ram":
        return {}
    more = {"durability": "ephemeral"} if request.param == "ephemeral" else {}
    return {"storage": tmp_path / "s", "ram_budget": "600KiB", "chunk_numel": 4096} | more


@pytest.mark.parametrize("amsgrad", [False, True])
def test_to_torch_and_back(twins, options, amsgrad):
    theirs, reference = twins.torch(amsgrad=amsgrad)
    twins.train(theirs, reference, 5)
    mine, ours = twins.ours([torch.nn.Parameter(p.detach().clone()) for p in theirs], **options)
    ours.load_state_dict(reference.state_dict())
    twins.same_state(reference.state_dict(), ours.state_dict())
    for params, optimizer in ((theirs, reference), (mine, ours)):
        twins.train(params, optimizer, 5, first=5)
    assert twins.same(mine, theirs)
    twins.same_state(reference.state_dict(), ours.state_dict())
    last = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    again = torch.optim.AdamW(twins.groups(last))
    again.load_state_dict(ours.state_dict())
    for params, optimizer in ((theirs, reference), (last, again)):
        twins.train(params, optimizer, 3, first=10)
    assert twins.same(last, theirs)
    ours.close()


def test_loading_forgets_what_was_there(twins, options):
    mine, ours = twins.ours(**options)
    fresh = ours.state_dict()
    twins.train(mine, ours, 3, gaps=False)
    ours.load_state_dict(fresh)
    assert ours.state_dict()["state"] == {}
    theirs, reference = twins.torch([torch.nn.Parameter(p.detach().clone()) for p in mine])
    for params, optimizer in ((theirs, reference), (mine, ours)):
        twins.train(params, optimizer, 3)
    assert twins.same(mine, theirs)
    ours.close()


def test_an_integer_step_is_taken(twins):
    theirs, reference = twins.torch()
    twins.train(theirs, reference, 2, gaps=False)
    saved = reference.state_dict()
    for kept in saved["state"].values():
        kept["step"] = 2
    mine, ours = twins.ours()
    ours.load_state_dict(saved)
    assert torch.equal(ours.state[mine[0]]["step"], torch.tensor(2.0))


def test_a_saved_state_survives_torch_save(twins, tmp_path):
    mine, ours = twins.ours()
    twins.train(mine, ours, 2)
    torch.save(ours.state_dict(), tmp_path / "state.pt")
    twins.same_state(ours.state_dict(), torch.load(tmp_path / "state.pt", weights_only=True))


def test_what_is_larger_than_the_budget_is_not_gathered(twins, tmp_path):
    _, ours = twins.ours(storage=tmp_path / "s", ram_budget="200KiB", chunk_numel=1024)
    with pytest.raises(BadInputError, match="export"):
        ours.state_dict()
    ours.close()


def damage(saved, what):
    first = saved["state"][0]
    if what == "shape":
        first["exp_avg"] = torch.zeros(2)
    elif what == "missing":
        del first["exp_avg_sq"]
    elif what == "groups":
        saved["param_groups"][0]["params"] = [0]
    elif what == "lr":
        saved["param_groups"][1]["lr"] = -1.0
    return saved


@pytest.mark.parametrize("what", ["shape", "missing", "groups", "lr"])
def test_what_does_not_fit_changes_nothing(twins, what):
    mine, ours = twins.ours()
    twins.train(mine, ours, 2, gaps=False)
    before = ours.state_dict()
    with pytest.raises(BadInputError):
        ours.load_state_dict(damage(ours.state_dict(), what))
    twins.same_state(before, ours.state_dict())


def test_clearing_the_state_is_beginning_anew(twins, options):
    """As Avalanche does at the start of an experience, in either way."""
    mine, ours = twins.ours(**options)
    theirs, reference = twins.torch()
    for params, optimizer in ((mine, ours), (theirs, reference)):
        twins.train(params, optimizer, 3)
        optimizer.state.clear()
        twins.train(params, optimizer, 3, first=3)
        optimizer.state.pop(params[4])
        twins.train(params, optimizer, 3, first=6)
    assert twins.same(mine, theirs)
    twins.same_state(reference.state_dict(), ours.state_dict())
    ours.close()


def test_it_cannot_be_copied(twins):
    import copy

    _, ours = twins.ours()
    with pytest.raises(BadInputError, match="state_dict"):
        copy.deepcopy(ours)


def test_hooks_of_loading_are_called(twins):
    _, ours = twins.ours()
    seen = []
    ours.register_load_state_dict_pre_hook(lambda *_: seen.append("before"))
    ours.register_load_state_dict_post_hook(lambda *_: seen.append("after"))
    ours.register_state_dict_post_hook(lambda *_: seen.append("saved"))
    ours.load_state_dict(ours.state_dict())
    assert seen == ["saved", "before", "after"]


def test_alias_of_torch_is_an_optimizer(twins):
    _, ours = twins.ours()
    assert isinstance(ours, torch.optim.Optimizer)
    assert isinstance(ours, TieredAdamW)
