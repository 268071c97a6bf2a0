"""Several ranks are one optimizer: the mean gradient, a share each, the same values on all."""

import json
import os
import subprocess
import sys

import pytest
import torch

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


def mean_gradients(twins, params, step, world=2, **options):
    """The mean by hand: a sum in the order of the ranks, zeros where one has none."""
    total = [None] * len(params)
    for rank in range(world):
        twins.gradients(params, 7 * step + 3 * rank, **options)
        for number, param in enumerate(params):
            if param.grad is not None:
                grad = param.grad.float() if param.dtype.itemsize == 2 else param.grad
                total[number] = grad if total[number] is None else total[number] + grad
    for param, grad in zip(params, total, strict=True):
        param.grad = None if grad is None else (grad / world).to(param.dtype)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"ram_budget": "300KiB", "storage": True, "durability": "process"}],
    ids=["ram", "file"],
)
def test_the_bits_of_torch_with_gradients_averaged_by_hand(twins, play, world, options):
    theirs, reference = twins.torch()
    for step in range(8):
        mean_gradients(twins, theirs, step, world)
        reference.step()
    for made in play("training", world, **options):
        assert twins.same(made["params"], theirs)
        twins.same_state(made["state"], reference.state_dict())
