"""Updates within backward give the bits of updates in `step`, and free gradients at once."""

import copy
import gc
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from carousel.errors import BadInputError, StorageError, StorageIOError
from carousel.offload import TieredAdamW, update

TIERS = {
    "ram": {},
    "ram, small chunks": {"chunk_numel": 1024},
    "file": {"ram_budget": "130KiB", "chunk_numel": 1024},
    "file, half": {"ram_budget": "250KiB", "chunk_numel": 1024},
    "file, least ring": {"ram_budget": "90KiB", "chunk_numel": 1024, "ring": 4},
    "file, buffered": {"ram_budget": "130KiB", "chunk_numel": 1024, "io": "buffered"},
    "file, ephemeral": {"ram_budget": "130KiB", "chunk_numel": 1024, "durability": "ephemeral"},
    "file, every third": {"ram_budget": "130KiB", "chunk_numel": 1024, "commit_every": 3},
}
SMALL = {"ram_budget": "130KiB", "chunk_numel": 1024, "durability": "process"}


class Net(nn.Module):
    """Layers that are not used in the order in which they are registered; one of them twice."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(63, 7)
        self.first = nn.Linear(20, 65)
        self.body = nn.Sequential(nn.Linear(65, 65), nn.Tanh(), nn.Linear(65, 65), nn.Tanh())
        self.branch = nn.Linear(65, 65)
        self.narrow = nn.Linear(65, 63)
        self.scale = nn.Parameter(torch.ones(1))
        self.unused = nn.Parameter(torch.ones(130))
        self.to(dtype)

    def forward(self, x, *, branch=True):
        x = torch.tanh(self.first(x))
        x = self.body(self.body(x)) * self.scale
        if branch:
            x = x + self.branch(x)
        return self.last(self.narrow(x))


def batch(step, dtype=torch.float32):
    numbers = torch.Generator().manual_seed(step)
    return torch.randn(6, 20, generator=numbers).to(dtype)


def loss_of(net, step, **options):
    out = net(batch(step, next(net.parameters()).dtype), **options)
    return (out.float() ** 2).mean()


def groups(net):
    return [
        {"params": [*net.body.parameters(), net.scale]},
        {"params": [*net.first.parameters(), *net.last.parameters()], "lr": 3e-3},
        {"params": [*net.branch.parameters(), net.unused, *net.narrow.parameters()]},
    ]


def make(update_in, folder=None, net=None, **options):
    net = Net() if net is None else net
    if "ram_budget" in options:
        options["storage"] = folder / update_in
    return net, TieredAdamW(groups(net), 1e-2, update_in=update_in, **options)


def train(net, optimizer, steps, *, first=0, before=None, after=None):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        if before is not None:
            before(net, step)
        loss_of(net, step, branch=step % 3 != 1).backward()
        optimizer.step()
        if after is not None:
            after(step)


def states_of(optimizer):
    book = optimizer._book
    full, masters = book.states_of(range(len(book.roster.params)), optimizer.state)
    return [full.get(param) for param in book.roster.params], masters


def check_same(one, other):
    """Parameters and states of two (net, optimizer)."""
    pairs = zip(one[0].parameters(), other[0].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    (mine, my_masters), (theirs, masters) = states_of(one[1]), states_of(other[1])
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        assert a is None or all(torch.equal(a[name], b[name]) for name in b)
    assert my_masters.keys() == masters.keys()
    assert all(torch.equal(my_masters[number], masters[number]) for number in masters)


def both(tmp_path, run, **options):
    """The same training in both modes; the results are compared, and the one in backward given."""
    made = []
    for update_in in ("backward", "step"):
        net, optimizer = make(update_in, tmp_path, **options)
        made.append((net, run(net, optimizer) or optimizer))
    check_same(*made)
    made[1][1].close()
    return made[0]


@pytest.fixture(params=list(TIERS), ids=str)
def tier(request):
    return dict(TIERS[request.param])


@pytest.mark.parametrize("amsgrad", [False, True], ids=["plain", "amsgrad"])
def test_the_same_bits_with_groups_gaps_and_a_schedule(tmp_path, tier, amsgrad):
    def run(net, optimizer):
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
        train(net, optimizer, 9, after=lambda _: schedule.step())

    _, ours = both(tmp_path, run, amsgrad=amsgrad, **tier)
    assert ours.stats().steps == 9
    ours.close()


def test_it_is_torchs_adamw(tmp_path):
    net, ours = make("backward", tmp_path, **SMALL)
    other = Net()
    reference = torch.optim.AdamW(groups(other), 1e-2, fused=True)
    train(net, ours, 6)
    train(other, reference, 6)
    pairs = zip(net.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    ours.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("stored", [False, True], ids=["ram", "file"])
def test_other_precisions(tmp_path, dtype, stored):
    made = []
    options = SMALL | {"ram_budget": "300KiB"} if stored else {}
    for update_in in ("backward", "step"):
        net, optimizer = make(update_in, tmp_path, Net(dtype), **options)
        train(net, optimizer, 6)
        made.append((net, optimizer))
    check_same(*made)
    for _, optimizer in made:
        optimizer.close()


def test_gradients_are_freed_within_backward(tmp_path):
    net = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(16)))
    ours = TieredAdamW(net.parameters(), storage=tmp_path, update_in="backward", **SMALL)
    before = [p.detach().clone() for p in net.parameters()]
    alive = []
    for param in net.parameters():
        param.register_post_accumulate_grad_hook(
            lambda _: alive.append(sum(p.grad is not None for p in net.parameters()))
        )
    for step in range(3):  # the first shows the order, in which the others read
        alive.clear()
        net(torch.randn(3, 64, generator=torch.Generator().manual_seed(step))).sum().backward()
        assert all(p.grad is None for p in net.parameters())
        assert len(alive) == 16
        assert max(alive) <= 4  # one comes, one was not looked at, two are behind
        ours.step()
    pairs = zip(before, net.parameters(), strict=True)
    assert not any(torch.equal(a, b.detach()) for a, b in pairs)
    ours.close()


def test_a_value_that_is_still_needed_counts_as_changed_before_it_is(monkeypatch):
    real, go = update.fused_update, threading.Event()

    def late(*args):
        go.wait(10)
        real(*args)

    monkeypatch.setattr(update, "fused_update", late)
    params = [nn.Parameter(torch.ones(64)) for _ in range(3)]
    ours = TieredAdamW(params, update_in="backward", chunk_numel=64)
    first, second, third = params
    loss = (first * third.detach()).sum() + (second * 2).sum() + (third * 3).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    go.set()
    with pytest.raises(StorageError, match="broken off"):
        ours.step()
    ours.close()


def test_nearly_all_of_it_is_done_when_backward_ends(tmp_path):
    net, ours = make("backward", tmp_path, **SMALL)
    train(net, ours, 2)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    loss_of(net, 2).backward()
    done = {name for name, p in net.named_parameters() if not torch.equal(before[name], p.detach())}
    assert {"last.weight", "body.0.weight", "first.weight"} <= done
    ours.step()
    ours.close()


@pytest.mark.parametrize("stored", [False, True], ids=["ram", "file"])
def test_frozen_late_and_given_gradients(tmp_path, stored):
    def run(net, optimizer):
        net.branch.requires_grad_(False)

        def before(net, step):
            if step == 2:
                net.branch.requires_grad_(True)
            if step == 4:
                net.body.requires_grad_(False)
            if step == 6:
                net.body.requires_grad_(True)
            if step == 5:
                net.unused.grad = torch.ones_like(net.unused)
            if step == 7:
                late = nn.Parameter(torch.ones(500))
                optimizer.add_param_group({"params": [late], "lr": 0.1})
                late.grad = torch.ones(500)

        train(net, optimizer, 10, before=before)

    _, ours = both(tmp_path, run, **SMALL if stored else {})
    ours.close()


def test_frozen_from_the_beginning(tmp_path):
    made = []
    for update_in in ("backward", "step"):
        net = Net()
        net.body.requires_grad_(False)
        net, optimizer = make(update_in, tmp_path, net, **SMALL)
        train(net, optimizer, 3)
        net.body.requires_grad_(True)
        train(net, optimizer, 4, first=3)
        made.append((net, optimizer))
    check_same(*made)
    assert made[0][1].stats().moves == 1
    for _, optimizer in made:
        optimizer.close()


def test_a_gradient_that_comes_after_backward_is_used(tmp_path):
    def run(net, optimizer):
        for step in range(4):
            optimizer.zero_grad()
            loss_of(net, step).backward()
            net.unused.grad = torch.full_like(net.unused, 0.5)
            optimizer.step()

    both(tmp_path, run, **SMALL)[1].close()


def test_a_model_that_grows(tmp_path):
    def run(net, optimizer):
        train(net, optimizer, 3)
        old = net.last.weight
        net.last = nn.Linear(63, 9)
        for place, param in enumerate(optimizer.param_groups[1]["params"]):
            if param is old:
                optimizer.param_groups[1]["params"][place] = net.last.weight
                optimizer.param_groups[1]["params"][place + 1] = net.last.bias
        train(net, optimizer, 4, first=3)

    torch.manual_seed(0)
    made = []
    for update_in in ("backward", "step"):
        net, optimizer = make(update_in, tmp_path, **SMALL)
        torch.manual_seed(1)
        run(net, optimizer)
        made.append((net, optimizer))
    check_same(*made)
    assert made[0][1].stats().moves == 1
    assert not made[0][0].last.weight.grad
    for _, optimizer in made:
        optimizer.close()


def test_parameters_without_elements(tmp_path):
    net = nn.ParameterList([nn.Parameter(torch.ones(0, 3)), nn.Parameter(torch.ones(5))])
    ours = TieredAdamW(net, update_in="backward")
    for _ in range(2):
        sum(p.sum() for p in net).backward()
        ours.step()
    assert [kept["step"] for kept in ours.state_dict()["state"].values()] == [2, 2]


def test_hooks_of_the_caller_count_whenever_they_were_registered(tmp_path):
    def halve(param):
        param.grad.mul_(0.5)

    def run(net, optimizer):
        net.first.weight.register_post_accumulate_grad_hook(halve)
        net.last.weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        train(net, optimizer, 4)

    both(tmp_path, run, **SMALL)[1].close()


def test_gradients_that_are_not_finite_do_what_they_do_in_step():
    made = []
    for update_in in ("backward", "step"):
        net, optimizer = make(update_in)
        train(net, optimizer, 2)
        net.scale.register_hook(lambda grad: grad * float("nan"))
        train(net, optimizer, 1, first=2)
        made.append(net)
    for a, b in zip(*(net.parameters() for net in made), strict=True):
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    assert torch.isnan(made[0].scale).all()


@pytest.mark.parametrize("stored", [False, True], ids=["ram", "file"])
def test_accumulation(tmp_path, stored):
    def run(net, optimizer):
        for step in range(5):
            optimizer.zero_grad()
            for part in range(2):
                with optimizer.earlier_microbatch():
                    loss_of(net, 3 * step + part, branch=part == 0).backward()
            with optimizer.last_microbatch():
                loss_of(net, 3 * step + 2, branch=step % 2 == 0).backward()
            optimizer.step()

    both(tmp_path, run, **SMALL if stored else {})[1].close()


def test_accumulation_that_is_not_marked_is_refused(tmp_path):
    net, ours = make("backward", tmp_path, **SMALL)
    twin = make("step", tmp_path, **SMALL)
    loss_of(net, 0).backward()
    with pytest.raises(BadInputError, match=r"earlier_microbatch.*last_microbatch"):
        loss_of(net, 1).backward()
    ours.step()  # that of the first backward
    train(*twin, 1)
    check_same((net, ours), twin)
    with ours.earlier_microbatch():
        loss_of(net, 1).backward()
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(BadInputError, match="run it in last_microbatch"):
        loss_of(net, 2).backward()
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    for net_, optimizer in ((net, ours), twin):
        train(net_, optimizer, 2, first=1)
    check_same((net, ours), twin)
    loss_of(net, 3).backward()
    loss = loss_of(net, 4)
    with ours.earlier_microbatch(), pytest.raises(BadInputError, match="backward ran twice"):
        loss.backward()
    for optimizer in (ours, twin[1]):
        optimizer.close()


def test_the_marks_make_no_difference_elsewhere(tmp_path):
    def run(net, optimizer):
        for step in range(3):
            with optimizer.last_microbatch():
                loss_of(net, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    both(tmp_path, run, **SMALL)[1].close()


def test_a_closure(tmp_path):
    def run(net, optimizer):
        for step in range(3):

            def closure(step=step):
                optimizer.zero_grad()
                loss = loss_of(net, step)
                loss.backward()
                return loss

            assert optimizer.step(closure) > 0

    both(tmp_path, run, **SMALL)[1].close()


def test_zero_grad_after_backward_takes_nothing_back(tmp_path):
    net, ours = make("backward", tmp_path, **SMALL)
    twin = make("step", tmp_path, **SMALL)
    for step in range(3):
        loss_of(net, step, branch=step != 1).backward()
        ours.zero_grad()
        ours.step()
        twin[1].zero_grad()
        loss_of(twin[0], step, branch=step != 1).backward()
        twin[1].step()
    check_same((net, ours), twin)
    for optimizer in (ours, twin[1]):
        optimizer.close()


@pytest.mark.parametrize(
    "options", [{"clip_norm": 1.0}, {"delay": 1}, {"update_in": "forward"}], ids=str
)
def test_what_cannot_be_is_refused_at_once(options):
    with pytest.raises(BadInputError, match="update_in"):
        TieredAdamW(Net().parameters(), **{"update_in": "backward"} | options)


def test_a_grad_scaler_is_refused(tmp_path):
    net, ours = make("backward", tmp_path, **SMALL)
    train(net, ours, 2)
    kept = [p.detach().clone() for p in net.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(loss_of(net, 2)).backward()
    with pytest.raises(BadInputError, match="GradScaler"):
        scaler.step(ours)
    with pytest.raises(BadInputError, match="GradScaler"):
        ours.step()
    ours.close()
    check_resumed(tmp_path, 2, kept)


def test_hyper_parameters_must_not_change_in_between(tmp_path):
    def run(net, optimizer):
        train(net, optimizer, 2)
        optimizer.zero_grad()
        loss_of(net, 2).backward()
        if optimizer._book.settings.update_in == "backward":
            optimizer.param_groups[1]["lr"] = 0.5
            with pytest.raises(BadInputError, match=r"lr of group 1 was 0\.003 in backward"):
                optimizer.step()
            optimizer.param_groups[1]["lr"] = 3e-3
        optimizer.step()
        train(net, optimizer, 2, first=3)

    both(tmp_path, run, **SMALL)[1].close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda net, _: setattr(net.last.weight, "grad", torch.ones(7, 63)), "another gradient"),
        (lambda net, ours: ours.state.pop(net.last.weight), "was removed"),
        (lambda net, ours: ours.param_groups[0]["params"].pop(), "call step"),
    ],
    ids=["gradient", "state", "parameters"],
)
def test_changes_in_between_are_refused(tmp_path, change, words):
    net, ours = make("backward", tmp_path, **SMALL)
    train(net, ours, 2)
    loss_of(net, 2).backward()
    change(net, ours)
    with pytest.raises(BadInputError, match=words):
        ours.step()
    ours.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda ours: ours.state_dict(),
        lambda ours: ours.commit(),
        lambda ours: ours.flush(),
        lambda ours: ours.add_param_group({"params": [nn.Parameter(torch.ones(2))]}),
        lambda ours: ours.load_state_dict({}),
    ],
    ids=["state_dict", "commit", "flush", "add_param_group", "load_state_dict"],
)
def test_half_a_step_is_not_looked_at(tmp_path, call):
    def run(net, optimizer):
        train(net, optimizer, 2)
        optimizer.zero_grad()
        loss_of(net, 2).backward()
        if optimizer._book.settings.update_in == "backward":
            with pytest.raises(BadInputError, match="call step"):
                call(optimizer)
        optimizer.step()
        train(net, optimizer, 2, first=3)

    both(tmp_path, run, **SMALL)[1].close()


def test_a_sparse_gradient_is_left_to_step_which_refuses_it():
    embedding, head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)
    ours = TieredAdamW([*embedding.parameters(), *head.parameters()], update_in="backward")
    head(embedding(torch.tensor([1, 2]))).sum().backward()
    with pytest.raises(BadInputError, match="sparse"):
        ours.step()
    embedding.weight.grad = embedding.weight.grad.to_dense()
    ours.step()
    assert [float(kept["step"]) for kept in ours.state.values()] == [1, 1, 1]


def test_checkpoints_that_run_backward_in_backward_are_refused_and_others_work():
    for reentrant in (False, True):
        net, ours = make("backward", chunk_numel=64)
        x = batch(0).requires_grad_()
        y = checkpoint(net.first, x, use_reentrant=reentrant)
        out = checkpoint(net.body, y, use_reentrant=reentrant)
        if reentrant:
            with pytest.raises((BadInputError, StorageError), match="use_reentrant=False"):
                out.sum().backward()
        else:
            out.sum().backward()
            ours.step()


def test_states_go_to_torch_and_back(tmp_path):
    net, ours = make("backward", tmp_path)
    train(net, ours, 3)
    other = Net()
    reference = torch.optim.AdamW(groups(other), fused=True)
    other.load_state_dict(net.state_dict())
    reference.load_state_dict(ours.state_dict())
    again, more = make("backward", tmp_path)
    again.load_state_dict(net.state_dict())
    more.load_state_dict(reference.state_dict())
    for net_, optimizer in ((other, reference), (again, more), (net, ours)):
        train(net_, optimizer, 3, first=3)
    for one in (again, net):
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_hooks_end_with_the_optimizer_and_are_not_copied(tmp_path):
    net, ours = make("backward", tmp_path, **SMALL)
    twin = copy.deepcopy(net)
    loss_of(twin, 0).backward()
    assert twin.last.weight.grad is not None
    assert ours.stats().steps == 0
    ours.close()
    loss_of(net, 0).backward()
    assert net.last.weight.grad is not None

    net, ours = make("backward", None)
    del ours
    gc.collect()
    loss_of(net, 0).backward()
    assert net.last.weight.grad is not None
    assert not net.last.weight._post_accumulate_grad_hooks


class Bomb(torch.autograd.Function):
    """Fails in backward, in front of what is behind it."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("bomb")


def test_a_backward_that_fails_before_the_first_update_changes_nothing(tmp_path):
    def run(net, optimizer):
        train(net, optimizer, 2)
        with pytest.raises(ArithmeticError):
            Bomb.apply(loss_of(net, 2)).backward()
        with pytest.raises(ArithmeticError):
            net.last(Bomb.apply(torch.ones(3, 63, requires_grad=True))).sum().backward()
        optimizer.zero_grad()
        optimizer.state_dict() if not optimizer._book.settings.storage else None
        train(net, optimizer, 2, first=3)

    both(tmp_path, run, chunk_numel=1 << 20)[1].close()


@pytest.mark.parametrize("then", ["step", "backward", "state_dict"])
def test_a_backward_that_fails_after_an_update_ends_the_optimizer(tmp_path, then):
    net, ours = make("backward", tmp_path, **SMALL)
    train(net, ours, 2)
    kept = [p.detach().clone() for p in net.parameters()]
    ours.flush()
    x = net.body(torch.tanh(net.first(batch(2))))
    with pytest.raises(ArithmeticError):
        net.last(net.narrow(net.branch(Bomb.apply(x)))).sum().backward()
    calls = {
        "step": ours.step,
        "backward": lambda: loss_of(net, 3).backward(),
        "state_dict": ours.state_dict,
    }
    with pytest.raises(StorageError, match="broken off"):
        calls[then]()
    with pytest.raises(StorageError, match="broken off"):
        ours.step()
    ours.close()
    check_resumed(tmp_path, 2, kept)


@pytest.mark.parametrize("name", ["preadv", "pwritev"])
def test_a_disk_that_fails_within_backward(tmp_path, monkeypatch, name):
    net, ours = make("backward", tmp_path, **SMALL)
    train(net, ours, 2)
    ours.flush()
    kept = [p.detach().clone() for p in net.parameters()]

    def fail(*_):
        raise OSError(5, "broken")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(StorageIOError):
        train(net, ours, 3, first=2)
    with pytest.raises(StorageIOError):
        ours.step()
    monkeypatch.undo()
    with pytest.raises(StorageIOError):
        ours.close()
    check_resumed(tmp_path, 2, kept)


def test_an_interrupt_within_backward_ends_the_optimizer(tmp_path, monkeypatch):
    net, ours = make("backward", tmp_path, **SMALL)
    train(net, ours, 2)
    kept = [p.detach().clone() for p in net.parameters()]

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("carousel.offload.update.fused_update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loss_of(net, 2).backward()
    monkeypatch.undo()
    with pytest.raises(StorageError, match="broken off"):
        ours.step()
    ours.close()
    check_resumed(tmp_path, 2, kept)


def check_resumed(tmp_path, steps, kept=None):
    """What is there is this step, and goes on as if nothing had been."""
    net = Net()
    ours = TieredAdamW.resume(groups(net), tmp_path / "backward", update_in="backward")
    assert ours.stats().steps == steps
    if kept is not None:
        assert all(torch.equal(a, b) for a, b in zip(kept, net.parameters(), strict=True))
    twin = make("step")
    train(*twin, steps)
    train(net, ours, 2, first=steps)
    train(*twin, 2, first=steps)
    check_same((net, ours), twin)
    ours.close()


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_backward as t
import torch
torch.set_num_threads(1)
net, ours = t.make("backward", Path(sys.argv[2]), **t.SMALL)
t.train(net, ours, 3)
ours.flush()
narrow = net.narrow if sys.argv[3] == "early" else net.first
def die(_):
    os.write(1, b"%d" % sum(p.grad is None for p in net.parameters()))
    os.kill(os.getpid(), signal.SIGKILL)
narrow.weight.register_post_accumulate_grad_hook(die)
t.loss_of(net, 3).backward()
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_kill_in_the_middle_of_backward_leaves_the_last_commit(tmp_path, when):
    command = [sys.executable, "-c", CHILD, os.path.dirname(__file__), str(tmp_path), when]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert int(done.stdout) > 0
    check_resumed(tmp_path, 3)
