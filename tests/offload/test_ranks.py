"""Several ranks are one optimizer: the mean gradient, a share each, the same values on all."""

import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from carousel.errors import BadInputError
from carousel.offload import TieredAdamW
from carousel.offload.inspection import summarize_states, verify_states

SCENES = runpy.run_path(str(Path(__file__).with_name("rank_scenes.py")))
FILE, line, batch, change = (SCENES[name] for name in ("FILE", "line", "batch", "change"))

NURSERY = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import rank_scenes, torch.distributed
from carousel.offload import TieredAdamW

TieredAdamW([rank_scenes.torch.nn.Parameter(rank_scenes.torch.ones(1))])  # imports the rest
for line in sys.stdin:
    scene, world, folder, options = json.loads(line)
    options = {k: getattr(rank_scenes.torch, v) if k == "dtype" else v for k, v in options.items()}
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            try:
                rank_scenes.play(scene, rank, world, folder, options)
            finally:
                os._exit(0)
        children.append(child)
    ended = [os.waitpid(child, 0)[1] for child in children]
    os.write(1, (json.dumps(ended) + "\\n").encode())
"""


@pytest.fixture(scope="module")
def nursery():
    """A process that has torch and forks the ranks."""
    command = [sys.executable, "-c", NURSERY, os.path.dirname(__file__)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def play(nursery, tmp_path):
    """Play a scene on several ranks and return what each one made; None for one that was killed."""

    def run(scene, world=2, *, allowed=False, **options):
        (tmp_path / "store").unlink(missing_ok=True)
        line = json.dumps([scene, world, str(tmp_path), options])
        nursery.stdin.write(line.encode() + b"\n")
        nursery.stdin.flush()
        json.loads(nursery.stdout.readline())
        made = []
        for rank in range(world):
            path = tmp_path / f"{scene}-{rank}.pt"
            made.append(torch.load(path) if path.exists() else None)
            assert allowed or "error" not in made[-1], made[-1]
            path.unlink(missing_ok=True)
        return made

    return run


def mean_gradients(twins, params, step, world=2, *, wide=False, **options):
    """The mean by hand: a sum in the order of the ranks, zeros where one has none."""
    total = [None] * len(params)
    for rank in range(world):
        twins.gradients(params, 7 * step + 3 * rank, **options)
        for number, param in enumerate(params):
            if param.grad is not None:
                grad = param.grad.float() if param.dtype.itemsize == 2 else param.grad
                total[number] = grad if total[number] is None else total[number] + grad
    for param, grad in zip(params, total, strict=True):
        dtype = torch.float32 if wide else param.dtype
        param.grad = None if grad is None else (grad / world).to(dtype)


def trained(twins, steps, params, optimizer, *, world=2, first=0, changes=False, **options):
    """Torch's optimizer on gradients that are averaged by hand."""
    for step in range(first, first + steps):
        if changes:
            change(params, optimizer, step)
        mean_gradients(twins, params, step, world, **options)
        if changes and step < 3:
            params[4].grad = None
        optimizer.step()
    return params


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (2, {}),
        (3, {"amsgrad": True}),
        (2, FILE),
        (3, FILE | {"commit_every": 3, "chunk_numel": None}),
        (2, {"durability": "ephemeral", "changes": True}),
        (2, FILE | {"changes": True}),
        (2, {"changes": True}),
    ],
    ids=["ram", "ram-3", "file", "file-3", "scratch, changed", "file, changed", "ram, changed"],
)
def test_the_bits_of_torch_with_gradients_averaged_by_hand(twins, play, tmp_path, world, options):
    changes, amsgrad = options.get("changes", False), options.get("amsgrad", False)
    theirs, reference = twins.torch(amsgrad=amsgrad)
    trained(twins, 8, theirs, reference, world=world, changes=changes)
    made = play("training", world, **options)
    for one in made:
        assert twins.same(one["params"], theirs)
        assert one["moves"] == (3 if changes else 0)
        if one["state"] is not None:
            twins.same_state(one["state"], reference.state_dict())
    twins.same_state(torch.load(tmp_path / "exported.pt"), reference.state_dict())
    states = 2 + amsgrad
    shares = [one["state_bytes"] for one in made]
    assert 1 <= sum(shares) / (4 * states * sum(p.numel() for p in theirs)) < 1.01
    assert max(shares) < 1.5 * sum(shares) / world


@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "fp32 gradients"])
def test_16_bit_parameters_are_summed_in_fp32(twins, play, wide):
    theirs = twins.params(dtype=torch.bfloat16)
    if wide:
        for param in theirs:
            param.grad_dtype = None
    ours = TieredAdamW(twins.groups(theirs))
    for step in range(8):
        mean_gradients(twins, theirs, step, wide=wide)
        ours.step()
    options = FILE | {"ram_budget": "500KiB"}
    for one in play("training", dtype="bfloat16", wide=wide, **options):
        assert twins.same(one["params"], theirs)


def test_near_to_one_process_with_the_whole_batch(play):
    model, inputs = line(), batch()
    reference = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for step in range(10):
        reference.zero_grad()
        model(inputs[step]).square().mean().backward()
        reference.step()
    for one in play("joined_batch"):
        for mine, theirs in zip(one["params"], model.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_group_of_one_is_no_group(twins, play):
    (one,) = play("alone", 1)
    grouped, single, resumed = one["params"]
    assert twins.same(grouped, single)
    assert twins.same(grouped, resumed)


def test_the_norm_that_is_clipped_is_that_of_the_mean(twins, play):
    theirs, reference = twins.torch()
    for step in range(8):
        mean_gradients(twins, theirs, step)
        torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        reference.step()
    first, second = play("training", clip_norm=0.5)
    assert twins.same(first["params"], second["params"])
    for mine, param in zip(first["params"], theirs, strict=True):
        torch.testing.assert_close(mine, param, rtol=1e-6, atol=1e-7)


def test_an_overflow_of_one_rank_skips_the_step_of_all(twins, play):
    theirs, reference = twins.torch()
    trained(twins, 2, theirs, reference)
    trained(twins, 3, theirs, reference, first=3)
    first, second = play("scaled")
    assert (first["scale"], second["scale"]) == (1024, 512)
    for one in (first, second):
        assert one["steps"] == 5
        assert twins.same(one["params"], theirs)


def test_what_one_rank_refuses_is_refused_by_all_and_changes_nothing(twins, play):
    first, second = play("refusals")
    words = {
        "shapes": "parameters differ between rank 0 and rank 1",
        "values": "values of parameters differ",
        "options": "options differ",
        "a value": "lr is -1",
        "delay": "process_group has 2 processes and delay is 1",
        "budget": "ram_budget",
        "gradient": "sparse",
        "lr": "hyper-parameters differ",
        "call": "this rank is at ",
        "state_dict": "use export",
        "replaced": "parameters differ",
    }
    for one in (first, second):
        assert one["texts"].keys() == words.keys()
        for name, word in words.items():
            assert word in (one["texts"][name] or ""), (name, one["texts"][name])
            assert one["texts"][name].startswith("BadInputError")
        assert twins.same(one["params"], trained(twins, 2, *twins.torch()))
    assert first["texts"]["a value"].startswith("BadInputError: rank 1: lr is -1")
    assert "rank 1 at step" in first["texts"]["call"]


def test_states_come_from_torch_and_go_on_elsewhere(twins, play, tmp_path):
    theirs, reference = twins.torch()
    twins.train(theirs, reference, 3)
    trained(twins, 1, theirs, reference, first=3)
    exported = reference.state_dict()
    exported = {**exported, "state": {k: dict(v) for k, v in exported["state"].items()}}
    for kept in exported["state"].values():
        kept.update({name: value.clone() for name, value in kept.items()})
    trained(twins, 1, theirs, reference, first=4)
    for one in play("saved"):
        assert twins.same(one["params"], theirs)
        twins.same_state(one["state"], reference.state_dict())
    twins.same_state(torch.load(tmp_path / "exported.pt"), exported)
    assert [one["payload"] for one in play("resumed", steps=0)] == [{"epoch": 3}] * 2


@pytest.mark.parametrize(
    ("victim", "where", "at", "newest", "every"),
    [
        (1, "publish", 4, 4, 1),
        (0, "publish", 5, 5, 1),
        (1, "write", 4, 3, 1),
        (0, "write", 3, 2, 3),
    ],
)
def test_a_kill_of_one_rank_goes_back_to_what_all_have(
    twins, play, victim, where, at, newest, every
):
    made = play("killed", victim=victim, where=where, at=at, every=every, allowed=True)
    assert made[victim] is None
    assert made[1 - victim]["error"] == "WorkerError"
    assert made[1 - victim]["newest"] == newest
    theirs, reference = twins.torch()
    common = (at - 1) * every
    found = [p.detach().clone() for p in trained(twins, common, theirs, reference, gaps=False)]
    trained(twins, 3, theirs, reference, first=common, gaps=False)
    for one in play("resumed", durability="process"):
        assert one["steps"] == common
        assert twins.same(one["found"], found)
        assert twins.same(one["params"], theirs)


def test_a_kill_within_a_move_leaves_the_parameters_of_before(twins, play, tmp_path):
    made = play("killed", victim=0, where="publish", at=6, changes=True, allowed=True)
    assert (made[1]["newest"], made[1]["step"]) == (6, 4)
    theirs = trained(twins, 4, *twins.torch(), changes=True, gaps=False)
    assert len(list(tmp_path.glob("states/rank-1-of-2/states-*.bin"))) == 2
    for one in play("resumed", steps=0):
        assert one["steps"] == 4
        assert twins.same(one["found"], theirs)
    assert len(list(tmp_path.glob("states/rank-*-of-2/states-*.bin"))) == 2


@pytest.mark.parametrize("durability", ["process", "durable"])
def test_nothing_is_written_before_all_have_published_the_commit_before(play, durability):
    first, _ = play("slow_commits", durability=durability)
    assert len(first["seen"]) > 12
    assert all(others >= own for own, others in first["seen"])
    if durability == "durable":
        assert first["returned"] == [1, 2, 3, 4]


def test_another_number_of_processes_is_refused(twins, play, tmp_path):
    play("training", steps=1, **FILE)
    with pytest.raises(BadInputError, match=r"states of 2 processes and there are 1: start 2"):
        TieredAdamW.resume(twins.groups(twins.params()), tmp_path / "states")
    with pytest.raises(BadInputError, match="states of 2 processes and there are 1"):
        twins.ours(storage=tmp_path / "states")
    for one in play("resumed", 3, allowed=True):
        assert one["error"] == "BadInputError"
        assert "states of 2 processes and there are 3" in one["text"]
    _, ours = twins.ours(storage=tmp_path / "states", fresh=True)
    ours.close()
    assert not list(tmp_path.glob("states/rank-*"))


def test_a_disk_that_fails_on_one_rank_is_an_error_on_all(play):
    first, second = (one["errors"] for one in play("broken_disk"))
    assert [name for name, _ in first[:2]] == ["TierFullError"] * 2
    assert [name for name, _ in second[:2]] == ["WorkerError"] * 2
    assert second[0][1].startswith("rank 0: ")
    assert "the disk is full" in second[0][1]


def test_the_example_runs_as_under_torchrun(play):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first, second = (one["said"] for one in play("example", port=port))
    assert first.startswith("rank 0 of 2: 52% of the states, accuracy 0.")
    assert second.startswith("rank 1 of 2: 48% of the states, accuracy 0.")
    assert first.split("accuracy")[1] == second.split("accuracy")[1]


def test_a_rank_can_be_inspected(play, tmp_path):
    play("training", steps=2, **FILE)
    for rank in range(2):
        folder = tmp_path / "states" / f"rank-{rank}-of-2"
        assert summarize_states(folder).step == 2
        assert verify_states(folder).ok


def test_a_group_that_is_none_is_refused(twins):
    with pytest.raises(BadInputError, match="init_process_group"):
        twins.ours(process_group="gloo")
