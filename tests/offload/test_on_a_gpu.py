"""What only a GPU can show. Where there is none all of this is skipped, and says so."""

import numpy as np
import pytest
import torch

from carousel.errors import WorkerError
from carousel.offload import TieredAdamW
from carousel.offload.device import CudaDevice

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a GPU and there is none; where there is one also run "
    "python -m benchmarks.offload_gpu",
)

SMALL = {"chunk_numel": 1024, "ram_budget": "700KiB"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, SMALL], ids=["one", "few"])
def test_it_is_the_same(twins, dtype, options):
    theirs, host = twins.ours(twins.params(dtype=dtype), **options)
    mine = [torch.nn.Parameter(p.detach().cuda()) for p in twins.params(dtype=dtype)]
    ours = TieredAdamW(twins.groups(mine), **options)
    for step in range(6):
        twins.gradients(theirs, step)
        for a, b in zip(theirs, mine, strict=True):
            b.grad = None if a.grad is None else a.grad.cuda()
        host.step()
        ours.step()
    assert twins.same(theirs, [p.cpu() for p in mine])
    ours.close()


def test_a_refusal_to_pin_is_not_the_next_kernels_error():
    device, area = CudaDevice(torch.device("cuda:0")), np.zeros(1 << 20, np.uint8)
    device.pin(area)
    with pytest.raises(WorkerError, match="cannot pin"):
        device.pin(area)
    assert float(torch.ones(3, device="cuda:0").sum()) == 3
    device.unpin(area)
