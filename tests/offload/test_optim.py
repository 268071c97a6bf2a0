"""The same bits as torch's fused AdamW, whatever the budget, the storage and the chunks."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from carousel.errors import BadInputError
from carousel.offload import TieredAdamW

TIERS = {
    "ram": {},
    "ram, small chunks": {"chunk_numel": 4096},
    "file": {"ram_budget": "300KiB", "storage": "states", "chunk_numel": 4096},
    "file, large chunks": {"storage": "states"},
    "file, few pinned": {"ram_budget": 280000, "storage": "states", "chunk_numel": 4096, "ring": 4},
    "file, buffered": {"ram_budget": "512KiB", "storage": "states", "io": "buffered"},
    "file, never committed": {
        "ram_budget": "300KiB",
        "storage": "states",
        "durability": "ephemeral",
    },
    "file, every third": {"ram_budget": "300KiB", "storage": "states", "commit_every": 3},
    "file, durable": {"ram_budget": "300KiB", "storage": "states", "durability": "durable"},
}


@pytest.fixture(params=list(TIERS), ids=str)
def tier(request, tmp_path):
    options = dict(TIERS[request.param])
    if "storage" in options:
        options["storage"] = tmp_path / "states"
    return options


def all_states(optimizer):
    """What `state_dict` gives, whatever the budget."""
    full, _ = optimizer._book.states_of(range(len(optimizer._book.roster.params)), optimizer.state)
    return [full[p] for p in optimizer._book.roster.params if p in full]


def check_states(reference, optimizer):
    made = all_states(optimizer)
    expected = [kept for kept in reference.state.values() if kept]
    ordered = [
        reference.state[p]
        for g in reference.param_groups
        for p in g["params"]
        if reference.state[p]
    ]
    assert len(expected) == len(made)
    for a, b in zip(ordered, made, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("amsgrad", [False, True], ids=["plain", "amsgrad"])
def test_the_same_bits_with_groups_gaps_and_a_schedule(twins, tier, amsgrad):
    (mine, ours), (theirs, reference) = (
        twins.ours(amsgrad=amsgrad, **tier),
        twins.torch(amsgrad=amsgrad),
    )
    for params, optimizer in ((theirs, reference), (mine, ours)):
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
        twins.train(params, optimizer, 12, after=lambda _, s=schedule: s.step())
    assert twins.same(mine, theirs)
    check_states(reference, ours)
    ours.close()


def test_two_hundred_steps_from_storage(twins, tmp_path):
    mine, ours = twins.ours(ram_budget="300KiB", storage=tmp_path / "s", durability="process")
    theirs, reference = twins.torch()
    twins.train(mine, ours, 200)
    twins.train(theirs, reference, 200)
    assert twins.same(mine, theirs)
    check_states(reference, ours)
    assert 0 < ours.stats().resident_fraction < 1
    ours.close()


def test_near_to_torchs_default_loop(twins):
    mine, ours = twins.ours()
    theirs = twins.params()
    twins.train(mine, ours, 50)
    twins.train(theirs, torch.optim.AdamW(twins.groups(theirs), foreach=False), 50)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"maximize": True}, {"lr": torch.tensor(0.01)}], ids=str)
def test_other_hyper_parameters(twins, tmp_path, options):
    mine, ours = twins.ours(ram_budget="300KiB", storage=tmp_path / "s", **options)
    theirs, reference = twins.torch(**options)
    twins.train(mine, ours, 5)
    twins.train(theirs, reference, 5)
    assert twins.same(mine, theirs)
    ours.close()


def test_coupled_weight_decay_is_that_of_adam(twins):
    mine, theirs = twins.params(), twins.params()
    twins.train(mine, TieredAdamW(mine, weight_decay=0.1, decoupled=False), 5)
    twins.train(theirs, torch.optim.Adam(theirs, weight_decay=0.1, fused=True), 5)
    assert twins.same(mine, theirs)


def test_double_precision(twins, tmp_path):
    mine, theirs = (twins.params(dtype=torch.float64) for _ in range(2))
    with TieredAdamW(mine, ram_budget="600KiB", storage=tmp_path / "s") as ours:
        twins.train(mine, ours, 6)
        assert ours.stats().read_bytes > 0
    twins.train(theirs, torch.optim.AdamW(theirs, fused=True), 6)
    assert twins.same(mine, theirs)


def test_frozen_and_late_parameters(twins, tmp_path):
    def run(make):
        params = twins.params()
        params[4].requires_grad_(False)
        optimizer = make(params)
        for step in range(9):
            twins.gradients(params, step)
            if step == 4:
                params[4].requires_grad_(True)
            if step < 4:
                params[4].grad = None
            if step == 6:
                late = torch.nn.Parameter(torch.ones(500))
                params.append(late)
                optimizer.add_param_group({"params": [late], "lr": 0.1})
                late.grad = torch.ones(500)
            optimizer.step()
        return params, optimizer

    options = {"ram_budget": "300KiB", "storage": tmp_path / "s", "chunk_numel": 4096}
    mine, ours = run(lambda params: TieredAdamW(params, **options))
    theirs, reference = run(lambda params: torch.optim.AdamW(params, fused=True))
    assert twins.same(mine, theirs)
    check_states(reference, ours)
    assert ours.stats().moves == 2
    ours.close()


def test_frozen_parameters_take_no_room(twins):
    params = twins.params()
    for param in params[:-1]:
        param.requires_grad_(False)
    assert TieredAdamW(params).stats().state_bytes == 8 * params[-1].numel()


def test_nothing_happens_without_gradients(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path / "s")
    ours.step()
    ours.flush()
    assert twins.same(params, twins.params())
    assert (ours.stats().steps, ours.stats().committed_step) == (0, None)
    ours.close()


def test_empty_parameters_are_carried_along(tmp_path):
    for shapes in ([(0,)], [(0, 3), (5,)]):
        params = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
        other = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
        ours = TieredAdamW(params, storage=tmp_path / str(len(shapes)), ram_budget="1MiB")
        reference = torch.optim.AdamW(other, fused=True)
        for param in (*params, *other):
            param.grad = torch.ones_like(param)
        ours.step()
        reference.step()
        assert torch.equal(params[-1], other[-1])
        assert [k["step"] for k in ours.state_dict()["state"].values()] == [1] * len(shapes)
        ours.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda o: OneCycleLR(o, max_lr=[0.01] * 3, total_steps=20),
        lambda o: CosineAnnealingLR(o, 10),
        ReduceLROnPlateau,
    ],
    ids=["one-cycle", "cosine", "plateau"],
)
def test_schedulers(twins, tmp_path, make):
    (mine, ours), (theirs, reference) = twins.ours(storage=tmp_path / "s"), twins.torch()
    for params, optimizer in ((mine, ours), (theirs, reference)):
        schedule = make(optimizer)
        plateau = isinstance(schedule, ReduceLROnPlateau)
        twins.train(
            params, optimizer, 12, after=lambda _, s=schedule, p=plateau: s.step(*[1.0] * p)
        )
    assert twins.same(mine, theirs)
    assert [g["lr"] for g in ours.param_groups] == [g["lr"] for g in reference.param_groups]
    ours.close()


def test_grad_scaler_with_overflows(twins, tmp_path):
    def run(params, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        for step in range(10):
            twins.gradients(params, step)
            scaler.scale(torch.ones(()))
            for param in params:
                if param.grad is not None:
                    param.grad.mul_(scaler.get_scale())
            if step in (2, 5):
                params[-1].grad = torch.full_like(params[-1], float("inf"))
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    mine, ours = twins.ours(storage=tmp_path / "s", ram_budget="300KiB")
    theirs, reference = twins.torch()
    assert run(mine, ours) == run(theirs, reference)
    assert twins.same(mine, theirs)
    assert ours.stats().steps == 8
    ours.close()


def test_a_skipped_step_touches_nothing(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path / "s", ram_budget="300KiB")
    twins.train(params, ours, 2, gaps=False)
    ours.flush()
    before, written = [p.detach().clone() for p in params], ours.stats().written_bytes
    ours.found_inf = torch.ones(())
    ours.step()
    del ours.found_inf
    ours.flush()
    assert twins.same(params, before)
    assert ours.stats().written_bytes == written
    assert float(ours.state[params[0]]["step"]) == 2
    ours.close()


def test_clipping_and_accumulation(twins, tmp_path):
    mine, ours = twins.ours(storage=tmp_path / "s", clip_norm=0.5)
    theirs, reference = twins.torch()
    for params, optimizer in ((mine, ours), (theirs, reference)):
        for step in range(6):
            twins.gradients(params, 2 * step, gaps=False)
            kept = [p.grad for p in params]
            twins.gradients(params, 2 * step + 1, gaps=False)
            for param, grad in zip(params, kept, strict=True):
                param.grad += grad
            if optimizer is reference:
                torch.nn.utils.clip_grad_norm_(params, 0.5)
            optimizer.step()
    assert twins.same(mine, theirs)
    ours.grad_scale = torch.ones(())
    with pytest.raises(BadInputError, match="unscale_"):
        ours.step()
    ours.close()


def test_a_closure_and_hooks(twins):
    params, ours = twins.ours()
    seen = []
    ours.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        twins.gradients(params, 0)
        assert torch.is_grad_enabled()
        return 3.5

    assert ours.step(closure) == 3.5
    assert seen == ["after"]


def test_gradients_that_are_not_contiguous(twins):
    mine, theirs = (torch.nn.Parameter(torch.ones(30, 20)) for _ in range(2))
    ours, reference = TieredAdamW([mine]), torch.optim.AdamW([theirs], fused=True)
    grad = torch.arange(600.0).view(20, 30)
    mine.grad, theirs.grad = grad.t(), grad.t().contiguous()
    ours.step()
    reference.step()
    assert torch.equal(mine, theirs)
