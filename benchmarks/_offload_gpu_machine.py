"""What the machine does alone, whether the traffic is hidden, and what is held over many steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks._harness import Row
from benchmarks._offload import MI, wall_time
from benchmarks._offload_gpu import Scale, gradients, parameters, seconds_of, sync
from benchmarks._offload_gpu_link import watching
from carousel.offload import TieredAdamW
from carousel.offload.device import CudaDevice, PinnedSlab
from carousel.offload.ring import anonymous

__all__ = ["allocator", "disk_rate", "overlap", "probe"]

GB = 1e9


def probe(scale: Scale, folder: Path) -> Iterator[Row]:
    """GB/s of bus and disk, and the kernel's parameters a second."""
    there = torch.zeros(scale.probe, dtype=torch.uint8, device=scale.device)
    for kind, here in _host_memory(scale):
        down = seconds_of(partial(here.copy_, there, non_blocking=True), scale)
        up = seconds_of(partial(there.copy_, here, non_blocking=True), scale)
        yield Row(f"down, {kind} memory, GB/s", scale.probe / down / GB)
        yield Row(f"up, {kind} memory, GB/s", scale.probe / up / GB)
    for threads in dict.fromkeys(scale.threads):
        torch.set_num_threads(threads)
        yield Row(f"fused AdamW of torch, {threads} threads, M/s", _kernel_rate(scale) / 1e6)
    yield Row("disk, written and read, GB/s", disk_rate(folder, scale.probe) / GB)


def overlap(scale: Scale, folder: Path) -> Iterator[Row]:  # noqa: ARG001 - all is in RAM
    """How much of both ways the kernel hides, and how many bytes they are."""
    params = parameters(scale.many, torch.bfloat16, scale.device)
    with watching() as watch, TieredAdamW(params) as optimizer:
        _step(optimizer, params, 0, scale)
        watch.clear()
        seconds = until_up = 0.0
        for step in range(1, scale.steps + 1):
            gradients(params, step)
            sync(scale)
            seconds += wall_time(optimizer.step)()
            until_up += watch.until_up()
        sync(scale)
        moved = sum(watch.nbytes.values()) / _updated(params, scale)
        down, up = watch.seconds("down"), watch.seconds("up")
        chunk = seconds / watch.chunks
    yield Row.at_most("host waits for gradients / they come down for", watch.waited / down, 0.10)
    yield Row.at_most(
        "last values up, after the last chunk / a chunk", until_up / scale.steps / chunk, 1.5
    )
    within = 3.92 <= moved <= 4.08
    yield Row("bytes moved a parameter and step", moved, "4 within 2 %", within)
    yield Row("step / (down + up), one after the other", seconds / (down + up))


def allocator(scale: Scale, folder: Path) -> Iterator[Row]:  # noqa: ARG001 - all is in RAM
    """Whether memory, streams and what is pinned stay as they are."""
    params = parameters(scale.many // 8, torch.bfloat16, scale.device)
    reserved: list[int] = []
    with watching() as watch, TieredAdamW(params) as optimizer:
        for step in range(scale.long):
            _step(optimizer, params, step, scale)
            reserved.append(torch.cuda.memory_reserved() if scale.on_gpu else 0)
        asked = optimizer._book.shelf.states.room.buckets.total_bytes
        yield Row.at_most("bytes reserved more than after step 3", max(reserved) - reserved[2], 0)
        yield Row.at_most("streams", watch.streams, 2)
        yield Row.at_most("bytes pinned / asked for", watch.pinned / asked, 1.02)
    yield Row.at_most("bytes pinned after closing", watch.pinned, 0)


def disk_rate(folder: Path, nbytes: int) -> float:
    """Bytes a second, written and read past the page cache where the file system can."""
    part = min(nbytes, 8 * MI)
    buffer, path = anonymous(part), folder / "probe"
    buffer[:] = np.random.default_rng(0).integers(0, 256, part, np.uint8)
    file = _open_direct(path)
    places = range(0, nbytes, part)
    try:
        write = wall_time(lambda: [os.pwrite(file, buffer, place) for place in places])()
        write += wall_time(lambda: os.fsync(file))()
        read = wall_time(lambda: [os.preadv(file, [buffer], place) for place in places])()
    finally:
        os.close(file)
        path.unlink()
    return 2 * nbytes / (write + read)


def _open_direct(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT
    with suppress(OSError):
        return os.open(path, flags | getattr(os, "O_DIRECT", 0))
    return os.open(path, flags)


def _host_memory(scale: Scale) -> Iterator[tuple[str, torch.Tensor]]:
    yield "plain", torch.zeros(scale.probe, dtype=torch.uint8)
    if scale.on_gpu:
        slab = PinnedSlab(CudaDevice(torch.device(scale.device)), scale.probe)
        (pinned,) = slab.parts(scale.probe)
        yield "pinned", pinned
        slab.close()


def _kernel_rate(scale: Scale) -> float:
    """Elements that torch's fused kernel updates a second."""
    param = nn.Parameter(torch.zeros(scale.probe // 4))
    param.grad = torch.ones_like(param)
    return param.numel() / seconds_of(torch.optim.AdamW([param], fused=True).step, scale)


def _step(optimizer: TieredAdamW, params: list[nn.Parameter], step: int, scale: Scale) -> None:
    gradients(params, step)
    optimizer.step()
    sync(scale)


def _updated(params: list[nn.Parameter], scale: Scale) -> int:
    """Elements that the watched steps updated, all together."""
    steps = range(1, scale.steps + 1)
    missing = [(step + number) % 5 == 4 for step in steps for number in range(len(params))]
    sizes = [param.numel() for _ in steps for param in params]
    return sum(size for size, gone in zip(sizes, missing, strict=True) if not gone)
