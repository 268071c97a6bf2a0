"""What one of several ranks does in a test; run in a child of the nursery in `test_ranks`."""

import os
import runpy
import signal
import sys
import time
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Twins

from carousel.errors import CarouselError
from carousel.offload import TieredAdamW
from carousel.offload.commit import CommitLog

FILE = {"ram_budget": "300KiB", "chunk_numel": 4096, "durability": "process"}


def play(scene, rank, world, folder, options):
    """Run a scene as one rank; what it returns lies in the folder afterwards."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    try:
        made = globals()[scene](rank, Path(folder), **options)
    except CarouselError as error:
        made = {"error": type(error).__name__, "text": str(error)}
    torch.save(made, f"{folder}/{scene}-{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def make(twins, params, **options):
    return TieredAdamW(twins.groups(params), process_group=dist.group.WORLD, **options)


def gradients(twins, params, step, rank, **options):
    """Another gradient on every rank, and other gaps."""
    twins.gradients(params, 7 * step + 3 * rank, **options)


def change(params, optimizer, step):
    """A parameter that was frozen, one that is replaced, and a new one."""
    if step == 3:
        params[4].requires_grad_(True)
    if step == 4:
        optimizer.state.pop(params[5])
        params[5] = optimizer.param_groups[2]["params"][1] = torch.nn.Parameter(
            torch.ones(200, 131)
        )
    if step == 5:
        params.append(torch.nn.Parameter(torch.ones(5000)))
        optimizer.add_param_group({"params": params[-1:], "lr": 0.1})


def training(
    rank, folder, steps=8, dtype=torch.float32, gaps=True, wide=False, changes=False, **options
):
    twins = Twins()
    params = twins.params(dtype=dtype)
    if "durability" in options:
        options["storage"] = folder / "states"
    if wide:
        for param in params:
            param.grad_dtype = None
    params[4].requires_grad_(not changes)
    ours = make(twins, params, **options)
    for step in range(steps):
        if changes:
            change(params, ours, step)
        gradients(twins, params, step, rank, gaps=gaps)
        if changes and step < 3:
            params[4].grad = None
        if wide:
            for param in params:
                param.grad = None if param.grad is None else param.grad.float()
        ours.step()
    stats = ours.stats()
    made = {
        "params": [p.detach() for p in params],
        "state": ours.state_dict() if ours._book.settings.budget is None else None,
        "state_bytes": stats.state_bytes,
        "moves": stats.moves,
    }
    ours.export(folder / "exported.pt")
    ours.close()
    return made


def joined_batch(rank, folder, world=2):
    """Half of a batch on each rank."""
    model, inputs = line(), batch()
    ours = TieredAdamW(model.parameters(), lr=0.01, process_group=dist.group.WORLD)
    for step in range(10):
        ours.zero_grad()
        model(inputs[step].chunk(world)[rank]).square().mean().backward()
        ours.step()
    return {"params": [p.detach() for p in model.parameters()]}


def line():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 4))


def batch():
    return torch.randn(10, 16, 20, generator=torch.Generator().manual_seed(1))


def alone(rank, folder):
    """A group of one process."""
    twins, made = Twins(), []
    for group in (dist.group.WORLD, None):
        params = twins.params()
        storage = folder / f"states-{group is None}"
        ours = TieredAdamW(twins.groups(params), process_group=group, storage=storage, **FILE)
        twins.train(params, ours, 5)
        ours.close()
        made.append([p.detach() for p in params])
    params = twins.params(9)
    ours = TieredAdamW.resume(twins.groups(params), folder / "states-False")
    return {"params": [*made, [p.detach() for p in params]]}


def refusals(rank, folder):
    """What one rank does otherwise; after each of them both go on."""
    twins, texts = Twins(), {}

    def attempt(name, call):
        try:
            call()
            texts[name] = None
        except CarouselError as error:
            texts[name] = f"{type(error).__name__}: {error}"

    other = Twins()
    other.shapes = (*twins.shapes[:-1], (129, 132)) if rank else twins.shapes
    attempt("shapes", lambda: make(other, other.params()))
    attempt("values", lambda: make(twins, twins.params(rank)))
    attempt("options", lambda: make(twins, twins.params(), clip_norm=[0.5, 0.6][rank]))
    attempt("a value", lambda: make(twins, twins.params(), lr=[0.5, -1.0][rank]))
    attempt("delay", lambda: make(twins, twins.params(), delay=1))
    attempt("budget", lambda: make(twins, twins.params(), ram_budget=["1MiB", "2KiB"][rank]))
    params = twins.params()
    options = FILE | {"chunk_numel": 1024, "ram_budget": "150KiB"}
    ours = make(twins, params, storage=folder / "states", **options)
    gradients(twins, params, 0, rank)
    ours.step()
    gradients(twins, params, 1, rank)
    kept = params[0].grad
    params[0].grad = torch.ones(1).to_sparse() if rank == 0 else kept
    attempt("gradient", ours.step)
    params[0].grad = kept
    ours.param_groups[1]["lr"] = [1.0, 2.0][rank]
    attempt("lr", ours.step)
    ours.param_groups[1]["lr"] = 3e-3
    attempt("call", ours.step if rank else ours.commit)
    attempt("state_dict", ours.state_dict)
    if rank:
        ours.param_groups[0]["params"][0] = torch.nn.Parameter(torch.ones(1))
    attempt("replaced", ours.step)
    ours.param_groups[0]["params"][0] = params[0]
    ours.step()
    ours.close()
    return {"texts": texts, "params": [p.detach() for p in params]}


def scaled(rank, folder):
    """A scaler that sees an overflow of its own rank only, and then scales otherwise."""
    twins = Twins()
    params = twins.params()
    ours = make(twins, params, storage=folder / "states", **FILE)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    for step in range(6):
        gradients(twins, params, step, rank)
        scaler.scale(torch.ones(()))
        for param in params:
            if param.grad is not None:
                param.grad.mul_(scaler.get_scale())
        if step == 2 and rank == 1:
            params[-1].grad = torch.full_like(params[-1], float("inf"))
        scaler.step(ours)
        scaler.update()
    made = {"params": [p.detach() for p in params], "steps": ours.stats().steps}
    ours.close()
    return made | {"scale": scaler.get_scale()}


def saved(rank, folder):
    """State from torch, exported, and imported into another optimizer."""
    twins = Twins()
    theirs, reference = twins.torch()
    twins.train(theirs, reference, 3)
    params = [torch.nn.Parameter(p.detach().clone()) for p in theirs]
    ours = make(twins, params, storage=folder / "states", **FILE)
    ours.load_state_dict(reference.state_dict())
    gradients(twins, params, 3, rank)
    ours.step()
    ours.export(folder / "exported.pt")
    ours.commit({"epoch": 3})
    ours.close()
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = make(twins, again)
    other.import_(folder / "exported.pt")
    gradients(twins, again, 4, rank)
    other.step()
    return {"params": [p.detach() for p in again], "state": other.state_dict()}


def killed(rank, folder, victim, where, at, changes=False, every=1):
    """The victim is killed at a commit, before it is published or while it is written."""
    twins = Twins()
    params = twins.params()
    options = {**FILE, "storage": folder / "states", "commit_every": every}
    params[4].requires_grad_(not changes)
    ours = make(twins, params, fresh=True, **options)
    log = ours._book.shelf.home._log
    if rank == victim:
        _die(log, where, at)
    for step in range(12):
        if changes:
            change(params, ours, step)
        gradients(twins, params, step, rank, gaps=False)
        if changes and step < 3:
            params[4].grad = None
        try:
            ours.step()
        except CarouselError as error:
            made = {"error": type(error).__name__, "newest": log.newest, "step": step}
            break
    ours.close()
    return made


def _die(log, where, at):
    publish, write, calls = CommitLog.publish, os.pwritev, []

    def publish_or_die(self, *args):
        if where == "publish" and self.newest + 1 == at:
            os.kill(os.getpid(), signal.SIGKILL)
        publish(self, *args)

    def write_or_die(*args):
        if where == "write" and log.newest + 1 == at:
            calls.append(args)
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        return write(*args)

    CommitLog.publish, os.pwritev = publish_or_die, write_or_die


def resumed(rank, folder, steps=3, **options):
    twins = Twins()
    params = twins.params(50 + rank)
    ours = TieredAdamW.resume(
        twins.groups(params), folder / "states", process_group=dist.group.WORLD, **options
    )
    first = ours.stats().steps
    made = {"steps": first, "found": [p.detach().clone() for p in params]}
    for step in range(first, first + steps):
        gradients(twins, params, step, rank, gaps=False)
        ours.step()
    ours.close()
    return made | {"params": [p.detach() for p in params], "payload": ours.resumed_payload}


def slow_commits(rank, folder, durability):
    """What rank 1 had published, whenever rank 0 wrote a record or came back from a step."""
    twins, seen, returned = Twins(), [], []
    params, path = twins.params(), folder / "published"
    path.write_text("0")
    dist.barrier()
    ours = make(twins, params, storage=folder / "states", **FILE | {"durability": durability})
    log, publish, write = ours._book.shelf.home._log, CommitLog.publish, os.pwritev

    def publish_late(self, *args):
        time.sleep(0.05)
        publish(self, *args)
        path.write_text(str(self.newest))

    def write_and_look(*args):
        seen.append((log.newest, int(path.read_text() or -1)))
        return write(*args)

    if rank == 1:
        CommitLog.publish = publish_late
    else:
        os.pwritev = write_and_look
    for step in range(4):
        gradients(twins, params, step, rank, gaps=False)
        ours.step()
        returned.append(int(path.read_text() or -1))
    ours.close()
    return {"seen": seen, "returned": returned}


def example(rank, folder, port):
    """In the surroundings that torchrun makes."""
    dist.destroy_process_group()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", **place}
    os.chdir(folder)
    path = Path(__file__).parents[2] / "examples" / "offload_ranks.py"
    with redirect_stdout(StringIO()) as said:
        runpy.run_path(str(path), run_name="__main__")
    return {"said": said.getvalue()}


def broken_disk(rank, folder):
    twins = Twins()
    params = twins.params()
    ours = make(twins, params, storage=folder / "states", **FILE)
    errors = []
    for step in range(6):
        if step == 2 and rank == 0:
            ours.flush()

            def fail(*_):
                raise OSError(28, "full")

            os.pwritev = fail
        gradients(twins, params, step, rank)
        try:
            ours.step()
        except CarouselError as error:
            errors.append((type(error).__name__, str(error)))
    try:
        ours.close()
    except CarouselError as error:
        errors.append(type(error).__name__)
    return {"errors": errors}
