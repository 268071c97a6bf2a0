"""What one of several ranks does in a test; run in a child of the nursery in `test_ranks`."""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Twins

from carousel.offload import TieredAdamW


def play(scene, rank, world, folder, options):
    """Run a scene as one rank; what it returns lies in the folder afterwards."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=20),
    )
    try:
        made = globals()[scene](rank, Path(folder), **options)
    except Exception as error:
        made = {"error": type(error).__name__, "text": str(error)}
    torch.save(made, f"{folder}/{scene}-{rank}.pt")
    dist.destroy_process_group()


def make(twins, params, **options):
    return TieredAdamW(twins.groups(params), process_group=dist.group.WORLD, **options)


def gradients(twins, params, step, rank, **options):
    """Another gradient on every rank, and other gaps."""
    twins.gradients(params, 7 * step + 3 * rank, **options)


def training(rank, folder, steps=8, dtype=torch.float32, gaps=True, storage=False, **options):
    twins = Twins()
    params = twins.params(dtype=dtype)
    if storage:
        options["storage"] = folder / "states"
    ours = make(twins, params, **options)
    for step in range(steps):
        gradients(twins, params, step, rank, gaps=gaps)
        ours.step()
    made = {
        "params": [p.detach() for p in params],
        "state": ours.state_dict(),
        "stats": (ours.stats().state_bytes, ours.stats().ram_bytes, ours.stats().steps),
    }
    ours.close()
    return made
