"""One step behind, bit for bit as a queue of one gradient in front of torch's optimizer."""

import gc
import os
import threading
from contextlib import suppress

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import OneCycleLR

from carousel.errors import BadInputError, StorageClosedError, StorageError, StorageIOError
from carousel.offload import TieredAdamW
from carousel.offload.settings import OffloadSettings

pytestmark = pytest.mark.filterwarnings("ignore:delay=1:UserWarning")

NEVER = 10**9
TIERS = {
    "ram": {},
    "file": {"ram_budget": "700KiB", "chunk_numel": 4096, "durability": "process"},
    "file, every third": {"ram_budget": "700KiB", "commit_every": 3},
    "file, scratch": {"ram_budget": "700KiB", "durability": "ephemeral"},
}


@pytest.fixture(params=list(TIERS), ids=str)
def tier(request, tmp_path):
    options = TIERS[request.param]
    return options | ({"storage": tmp_path / "states"} if options else {})


def network(dtype=torch.float32):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(37, 129), torch.nn.Tanh(), torch.nn.Linear(129, 65), torch.nn.Linear(65, 7)
    )
    return model.to(dtype)


def groups(model):
    first, _, *others = model
    rest = [param for layer in others for param in layer.parameters()]
    return [{"params": list(first.parameters()), "weight_decay": 0.1}, {"params": rest}]


def backward(model, step, scale=1.0):
    """Gradients that depend on the parameters, so a step too early or too late shows."""
    numbers = torch.Generator().manual_seed(step)
    x = torch.randn(16, 37, generator=numbers).to(model[0].weight.dtype)
    y = torch.randint(7, (16,), generator=numbers)
    model.zero_grad()
    (cross_entropy(model(x), y) * scale).backward()
    if step % 5 == 3:
        model[3].bias.grad = None


class Queue:
    """The reference: torch's optimizer on parameters of its own, and a queue of one gradient."""

    def __init__(self, model, first, clip_norm=None):
        self.model, self.first, self.clip_norm = model, first, clip_norm
        self.ahead = {p: torch.nn.Parameter(p.detach().float().clone()) for p in model.parameters()}
        made = [g | {"params": [self.ahead[p] for p in g["params"]]} for g in groups(model)]
        self.optimizer = torch.optim.AdamW(made, lr=0.01, fused=True)
        self.queue, self.steps = [], 0

    @torch.no_grad()
    def flush(self):
        while self.queue:
            grads, hyper, scale = self.queue.pop()
            now = self._hyper()
            self._go_by(hyper)
            for param, grad in grads.items():
                self.ahead[param].grad = grad
            self.optimizer.grad_scale, self.optimizer.found_inf = scale, torch.zeros(())
            self.optimizer.step()
            self._go_by(now)
        for param, ahead in self.ahead.items():
            param.copy_(ahead)

    def step(self, scale=None):
        self.flush()
        grads = {p: p.grad for p in self.model.parameters()}
        if not all(grad is None or grad.isfinite().all() for grad in grads.values()):
            return
        if self.clip_norm:
            clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.steps += 1
        copies = {p: None if grad is None else grad.float().clone() for p, grad in grads.items()}
        self.queue.append((copies, self._hyper(), scale))
        if self.steps < self.first:
            self.flush()

    def _hyper(self):
        return [{"lr": g["lr"], "betas": g["betas"]} for g in self.optimizer.param_groups]

    def _go_by(self, hyper):
        for group, values in zip(self.optimizer.param_groups, hyper, strict=True):
            group.update(values)


def pair(first, dtype=torch.float32, clip_norm=None, **options):
    mine, theirs = network(dtype), network(dtype)
    options |= {"lr": 0.01, "delay": 1, "delay_from": first, "clip_norm": clip_norm}
    return mine, TieredAdamW(groups(mine), **options), theirs, Queue(theirs, first, clip_norm)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def train(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        backward(model, step)
        optimizer.step()


@pytest.mark.parametrize("first", [1, 5, NEVER])
def test_bitwise_that_of_the_queue(tier, first):
    mine, ours, theirs, queue = pair(first, clip_norm=0.5, **tier)
    schedules = [OneCycleLR(o, max_lr=0.05, total_steps=20) for o in (ours, queue.optimizer)]
    for step in range(12):
        for model, optimizer, schedule in zip(
            (mine, theirs), (ours, queue), schedules, strict=True
        ):
            backward(model, step)
            optimizer.step()
            schedule.step()
        assert same(mine, theirs)
    ours.flush()
    queue.flush()
    assert same(mine, theirs)
    for param, ahead in zip(mine.parameters(), queue.ahead.values(), strict=True):
        kept, expected = ours.state[param]["step"], queue.optimizer.state[ahead]["step"]
        assert torch.equal(kept, expected)
    ours.close()


def test_a_delay_shows_in_the_gradients():
    """Else the tests above would pass without one."""
    mine, ours, theirs, _ = pair(1)
    train(mine, ours, 6)
    ours.flush()
    train(theirs, TieredAdamW(groups(theirs), lr=0.01), 6)
    assert not same(mine, theirs)


def test_the_parameters_are_one_step_behind():
    mine, ours, theirs, _ = pair(1)
    train(mine, ours, 1)
    assert same(mine, theirs)
    ours.flush()
    assert not same(mine, theirs)


def test_masters_of_16_bit_parameters(tier):
    mine, ours, theirs, queue = pair(2, dtype=torch.bfloat16, **tier)
    train(mine, ours, 9)
    train(theirs, queue, 9)
    assert same(mine, theirs)
    ours.flush()
    queue.flush()
    assert same(mine, theirs)
    ours.close()


def test_gradients_of_fp32_for_16_bit_parameters():
    mine, ours, theirs, queue = pair(1, dtype=torch.bfloat16)
    for model, optimizer in ((mine, ours), (theirs, queue)):
        for param in model.parameters():
            param.grad_dtype = torch.float32
        train(model, optimizer, 5)
    assert mine[0].weight.grad.dtype == torch.float32
    assert same(mine, theirs)


def test_a_gradient_that_overflowed_is_dropped_and_the_pending_one_is_not(tier):
    mine, ours, theirs, queue = pair(2, **tier)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for step in range(12):
        scale = scaler.get_scale() if step else 1024.0
        for model in (mine, theirs):
            backward(model, step, scale)
            if step in (0, 4, 5, 9):
                model[0].weight.grad[3, 3] = float("inf")
        scaler.scale(torch.ones(()))
        scaler.step(ours)
        queue.step(torch.tensor(scale))
        scaler.update()
        assert same(mine, theirs)
    ours.flush()
    queue.flush()
    assert same(mine, theirs)
    assert ours.stats().steps == queue.steps == 8
    ours.close()


def test_accumulation_and_a_change_of_learning_rate_come_too_late_for_what_was_handed_in():
    mine, ours, theirs, queue = pair(1)
    for model, optimizer in ((mine, ours), (theirs, queue.optimizer)):
        backward(model, 0)
        (ours if model is mine else queue).step()
        for group in optimizer.param_groups:
            group["lr"] = 0.5
        for param in model.parameters():
            param.grad.fill_(100.0)
    ours.flush()
    queue.flush()
    assert same(mine, theirs)


def test_a_state_dict_has_the_pending_gradient_and_loads_into_torch(tmp_path):
    mine, ours, theirs, queue = pair(1, storage=tmp_path, durability="process")
    train(mine, ours, 4)
    train(theirs, queue, 4)
    packed = ours.state_dict()
    queue.flush()
    assert same(mine, theirs)
    for number, ahead in enumerate(queue.ahead.values()):
        kept = queue.optimizer.state[ahead]
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(packed["state"][number][name], kept[name])
    ours.close()


@pytest.mark.parametrize("how", ["flush", "commit", "export", "add_param_group", "close"])
def test_what_looks_at_the_parameters_settles_them(how, tmp_path):
    mine, ours, theirs, queue = pair(1, storage=tmp_path / "s", durability="process")
    train(mine, ours, 4)
    train(theirs, queue, 4)
    late = {"params": [torch.nn.Parameter(torch.ones(3))]}
    arguments = {"export": (tmp_path / "file",), "add_param_group": (late,)}
    getattr(ours, how)(*arguments.get(how, ()))
    queue.flush()
    assert same(mine, theirs)
    ours.close()


@pytest.mark.parametrize("ending", ["close", "commit", "let go"])
def test_resuming_goes_on_bit_for_bit(tmp_path, ending):
    options = {"storage": tmp_path, "durability": "process", "ram_budget": "700KiB"}
    mine, ours, theirs, queue = pair(3, payload=lambda: {"at": 5}, **options)
    train(mine, ours, 7)
    if ending == "commit":
        ours.commit({"at": 5})
    if ending != "let go":
        ours.close()
    del ours
    gc.collect()  # what nobody closed is finished all the same
    again = network()
    resumed = TieredAdamW.resume(
        groups(again), tmp_path, delay=1, delay_from=3, ram_budget="700KiB", durability="process"
    )
    assert resumed.resumed_payload == {"at": 5}
    assert resumed.stats().steps == 7
    train(theirs, queue, 7)
    queue.flush()
    assert same(again, theirs)
    train(again, resumed, 4, start=7)
    train(theirs, queue, 4, start=7)
    assert same(again, theirs)
    resumed.close()


def test_frozen_late_and_replaced_parameters(tmp_path):
    mine, ours, theirs, queue = pair(1, storage=tmp_path, ram_budget="900KiB", chunk_numel=4096)
    for model, optimizer in ((mine, ours), (theirs, queue)):
        model[2].weight.requires_grad_(False)
        train(model, optimizer, 3)
        model[2].weight.requires_grad_(True)
        train(model, optimizer, 3, start=3)
    assert same(mine, theirs)
    ours.flush()
    before = mine[3].bias.detach().clone()
    mine[3].bias = ours.param_groups[1]["params"][3] = torch.nn.Parameter(before.clone())
    train(mine, ours, 2, start=6)
    ours.flush()
    assert not torch.equal(mine[3].bias, before)
    assert float(ours.state[mine[3].bias]["step"]) == 2
    ours.close()


def changed(model):
    with torch.no_grad():
        model[0].bias.add_(1)


@pytest.mark.parametrize(
    "change", [changed, lambda model: setattr(model[0].bias, "data", torch.ones(129))]
)
def test_a_parameter_that_is_changed_while_an_update_is_pending(change):
    mine, ours, _, _ = pair(1)
    train(mine, ours, 3)
    change(mine)
    kept = mine[0].bias.detach().clone()
    for act in (ours.step, ours.flush, ours.state_dict):
        with pytest.raises(BadInputError, match=r"shape \(129,\).*flush\(\)"):
            act()
    assert torch.equal(mine[0].bias, kept)
    del ours.state[mine[0].bias]  # the change is to stay, and its states begin anew
    ours.flush()
    assert torch.equal(mine[0].bias, kept)
    train(mine, ours, 2, start=3)
    assert float(ours.state[mine[0].bias]["step"]) == 2
    ours.close()


def test_after_a_flush_parameters_may_be_changed():
    mine, ours, theirs, queue = pair(1)
    for model, optimizer in ((mine, ours), (theirs, queue)):
        train(model, optimizer, 3)
        optimizer.flush()
        changed(model)
    with torch.no_grad():
        queue.ahead[theirs[0].bias].copy_(theirs[0].bias)
    train(mine, ours, 3, start=3)
    train(theirs, queue, 3, start=3)
    assert same(mine, theirs)


def test_going_back_to_what_was_saved():
    mine, ours, _, _ = pair(1)
    train(mine, ours, 3)
    packed = ours.state_dict()
    weights = {name: value.clone() for name, value in mine.state_dict().items()}
    train(mine, ours, 3, start=3)
    ours.flush()
    expected = [param.detach().clone() for param in mine.parameters()]
    train(mine, ours, 2, start=6)
    mine.load_state_dict(weights)
    ours.load_state_dict(packed)
    assert all(torch.equal(value, weights[name]) for name, value in mine.state_dict().items())
    train(mine, ours, 3, start=3)
    ours.flush()
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), expected, strict=True))


def test_a_gradient_that_cannot_be_used_changes_nothing():
    mine, ours, theirs, queue = pair(1)
    train(mine, ours, 3)
    train(theirs, queue, 3)
    backward(mine, 3)
    kept = mine[0].weight.grad
    mine[0].weight.grad = None
    mine[0].weight.grad = kept.to_sparse()
    with pytest.raises(BadInputError, match="sparse"):
        ours.step()
    assert same(mine, theirs)
    mine[0].weight.grad = kept
    backward(theirs, 3)
    ours.step()
    queue.step()
    assert same(mine, theirs)


def test_close_says_that_the_pending_step_failed(tmp_path, monkeypatch):
    before = workers()
    mine, ours, _, _ = pair(1, storage=tmp_path, durability="process")
    train(mine, ours, 3)
    ours.flush()

    def fail(*_):
        raise ArithmeticError("broken")

    monkeypatch.setattr("carousel.offload.update.fused_update", fail)
    train(mine, ours, 1, start=3)
    with pytest.raises(StorageError, match="broken"):
        ours.close()
    ours.close()
    assert workers() == before
    monkeypatch.undo()
    with TieredAdamW.resume(groups(network()), tmp_path) as resumed:
        assert resumed.stats().steps == 3


def test_when_a_payload_fails_the_gradient_is_not_taken(tmp_path):
    broken = [False]

    def payload():
        return {} if not broken[0] else 1 / 0

    mine, ours, theirs, queue = pair(1, storage=tmp_path, payload=payload, durability="process")
    train(mine, ours, 3)
    broken[0] = True
    with pytest.raises(ZeroDivisionError):
        ours.step()
    broken[0] = False
    train(mine, ours, 3, start=3)
    train(theirs, queue, 3)
    queue.flush()
    train(theirs, queue, 3, start=3)
    assert same(mine, theirs)
    ours.close()


@pytest.mark.parametrize("where", ["disk", "kernel"])
def test_an_error_on_the_worker_surfaces_at_the_next_call(tmp_path, monkeypatch, where):
    options = {"storage": tmp_path, "durability": "process", "ram_budget": "700KiB"}
    before = workers()
    mine, ours, theirs, queue = pair(1, chunk_numel=4096, **options)
    train(mine, ours, 3)
    ours.flush()

    def fail(*_):
        raise OSError(5, "broken") if where == "disk" else ArithmeticError("broken")

    target = (os, "pwritev") if where == "disk" else ("carousel.offload.update.fused_update",)
    monkeypatch.setattr(*target, fail)
    error = StorageIOError if where == "disk" else StorageError
    train(mine, ours, 1, start=3)
    with pytest.raises(error, match=r"broken|the disk reports an error") as caught:
        train(mine, ours, 2, start=4)
    assert where == "disk" or isinstance(caught.value.__cause__, ArithmeticError)
    with pytest.raises(error):
        ours.flush()
    monkeypatch.undo()
    with suppress(error):  # said again, if the step that failed is the one that is pending
        ours.close()
    assert workers() == before
    train(theirs, queue, 3)
    queue.flush()
    again = network()
    resumed = TieredAdamW.resume(groups(again), tmp_path)
    assert resumed.stats().steps == 3
    assert same(again, theirs)
    resumed.close()


def workers():
    return [t for t in threading.enumerate() if t.name.startswith("carousel-offload")]


@pytest.mark.parametrize("storage", [False, True], ids=["ram", "file"])
def test_closing_joins_the_threads(tmp_path, storage):
    before = workers()
    mine, ours, _, _ = pair(1, **({"storage": tmp_path} if storage else {}))
    train(mine, ours, 3)
    assert workers() != before
    ours.close()
    ours.close()
    assert workers() == before
    with pytest.raises(StorageClosedError):
        ours.step()


def test_letting_go_joins_the_threads(tmp_path):
    before = workers()
    mine, ours, _, _ = pair(1, storage=tmp_path)
    schedule = OneCycleLR(ours, max_lr=0.05, total_steps=20)
    train(mine, ours, 3)
    del ours, schedule
    gc.collect()
    assert workers() == before


def test_short_runs_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="below 5000 steps"):
        TieredAdamW(network().parameters(), delay=1)


@pytest.mark.parametrize("options", [{"delay": 2}, {"delay": -1}, {"delay_from": 0}], ids=str)
def test_bad_options(options):
    with pytest.raises(BadInputError, match="delay"):
        TieredAdamW(network().parameters(), **options)


def test_not_on_a_device():
    with pytest.raises(BadInputError, match="use delay=0"):
        OffloadSettings(delay=1, landing="some")


def test_the_copies_come_out_of_the_budget():
    model = torch.nn.Linear(256, 1024, bias=False)
    numel = model.weight.numel()
    with pytest.raises(BadInputError, match=rf"take {16 * numel}"):
        TieredAdamW(model.parameters(), ram_budget=16 * numel - 1, delay=1)
    TieredAdamW(model.parameters(), ram_budget=16 * numel, delay=1)


def test_a_model_larger_than_the_rest_of_the_budget_still_streams(tmp_path):
    mine, ours, theirs, queue = pair(1, storage=tmp_path, ram_budget="400KiB")
    assert ours.stats().resident_fraction < 1
    train(mine, ours, 4)
    train(theirs, queue, 4)
    assert same(mine, theirs)
    ours.close()
