"""One optimizer over processes: `torchrun --nproc-per-node 2 examples/offload_ranks.py`; or one."""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from carousel.offload import TieredAdamW

rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("gloo")
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)

torch.manual_seed(0)  # the same on every rank: the same parameters, the same order of samples
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
model.append(nn.Linear(256, 10))
optimizer = TieredAdamW(
    model.parameters(), ram_budget="512KiB", storage="states", process_group=dist.group.WORLD
)
for batch in torch.randint(1500, (60, 64)):
    mine = batch.chunk(world)[rank]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()  # no DDP: the step averages
    optimizer.step()
optimizer.close()
share = optimizer.stats().state_bytes / sum(8 * p.numel() for p in model.parameters())
hits = (model(x[1500:]).argmax(1) == y[1500:]).float()
print(f"rank {rank} of {world}: {share:.0%} of the states, accuracy {hits.mean():.3f}")
if world > 1:
    dist.destroy_process_group()
