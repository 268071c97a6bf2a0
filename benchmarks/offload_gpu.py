"""A model on a GPU: is the update right, is its traffic hidden, what fits; in under 8 minutes.

Seven parts, each in a process of its own with a limit of its own, so that one that fails, hangs or
runs out of memory stops no other:

- ``probe``: what bus, kernel and disk do alone.
- ``equality``: parameters and states against those of the CPU, bit for bit, from equal gradients:
  all dtypes, few buckets, clipping, a ``GradScaler`` with overflows, a stream of the caller's.
- ``model``: a GPT of 1.3 billion parameters in bf16: device memory and tokens a second, against
  torch's fused AdamW on the device, and torchao and bitsandbytes where they are installed. The
  delayed update is not compared: it is refused on a device.
- ``largest``: the deepest GPT that trains in 6 GiB of the device, ours and torch's.
- ``overlap``: the host's waits for gradients over the time that they take to come down, what is
  still on its way up when the last chunk is done, and the bytes. Gradients come down within `step`,
  not behind backward, so it is the kernel that hides them.
- ``storage``: states beyond the budget, a step over the longer of arithmetic and disk; then a
  ``kill -9`` and a recovery. Where the disk is slow the states are fewer.
- ``allocator``: memory and streams over 100 steps, and what is pinned.

It ends with exit code 1 if a part failed, or values were not equal; a missed target is a finding,
not a failure. The JSON is written with every row, so a run that is broken off loses nothing.

``--smoke`` does the same with small sizes on the CPU, where a copy is done as soon as it is told:
it shows that the script runs, and its figures say nothing.

Run: ``python -m benchmarks.offload_gpu [--json FILE] [--parts NAME,...] [--folder FOLDER]``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks._harness import Row, report, write_rows
from benchmarks._offload_gpu_child import Order, has_gpu, run_part

SECONDS = 470
"""Of all parts together."""


@dataclass(frozen=True)
class Part:
    """One of the seven.

    Args:
        work: ``module:function``; the function takes the scale and a folder, and yields rows.
        limit: seconds after which it is ended.
    """

    work: str
    limit: float


PARTS = {
    "probe": Part("benchmarks._offload_gpu_machine:probe", 45),
    "equality": Part("benchmarks._offload_gpu_equality:equality", 50),
    "model": Part("benchmarks._offload_gpu_model:sweep", 150),
    "largest": Part("benchmarks._offload_gpu_model:largest", 60),
    "overlap": Part("benchmarks._offload_gpu_machine:overlap", 35),
    "storage": Part("benchmarks._offload_gpu_storage:storage", 100),
    "allocator": Part("benchmarks._offload_gpu_machine:allocator", 30),
}

_GRACE = 10
"""Seconds for a part that is done to end."""

_PROCESSES = multiprocessing.get_context("forkserver")
"""Its server imports torch once and never touches the GPU, so every part begins at once, clean."""


def main() -> None:
    """Run the parts, print the table, and end with 1 if one failed."""
    choices = _choices()
    _PROCESSES.set_forkserver_preload(["benchmarks._offload_gpu_preload"])
    if not choices.smoke and not _ask(has_gpu):
        raise SystemExit("there is no CUDA device here; --smoke runs small sizes on the CPU")
    rows: list[Row] = []
    failed: list[str] = []
    end = time.monotonic() + SECONDS

    def keep(row: Row) -> None:
        rows.append(row)
        print(f"  {row.metric}: {row.value:.4g}", flush=True)
        if choices.json is not None:
            write_rows(rows, choices.json)

    for name in choices.parts:
        part, left = PARTS[name], end - time.monotonic()
        print(name, flush=True)
        with tempfile.TemporaryDirectory(dir=choices.folder, ignore_cleanup_errors=True) as folder:
            order = Order(part.work, folder, smoke=choices.smoke)
            problem = attempt(order, max(0.0, min(part.limit, left)), _named(name, keep))
        if problem is not None:
            print(f"  {name} {problem}", flush=True)
            failed.append(name)
            keep(Row.at_least(f"{name}: ran to its end", 0, 1))
    report(rows, "offload_gpu", choices.json)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def attempt(order: Order, limit: float, keep: Callable[[Row], None]) -> str | None:
    """Run a part in a process of its own.

    Args:
        order: what to run.
        limit: seconds after which it is ended.
        keep: is given every row as soon as it is there.

    Returns:
        What went wrong, None if nothing did.
    """
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=run_part, args=(order, theirs))
    process.start()
    theirs.close()
    end = time.monotonic() + limit
    try:
        while ours.poll(max(0.0, end - time.monotonic())):
            row = ours.recv()
            if row is None:
                process.join(_GRACE)
                return None
            keep(row)
        return f"was ended after {limit:.0f} s"
    except EOFError:
        process.join()
        return f"failed with exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()
        ours.close()


def _named(name: str, keep: Callable[[Row], None]) -> Callable[[Row], None]:
    return lambda row: keep(replace(row, metric=f"{name}: {row.metric}"))


def _ask(question: Callable[[], bool]) -> bool:
    """An answer for which this process need not import torch."""
    with ProcessPoolExecutor(1, mp_context=_PROCESSES) as pool:
        return pool.submit(question).result()


def _choices() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--smoke", action="store_true", help="small sizes, on the CPU")
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help="names, with commas")
    choices = parser.parse_args()
    if not choices.folder.is_dir():
        parser.error(f"--folder {choices.folder} is no folder; give one that exists")
    return choices


def _parts(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name!r} is no part; choose from {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    main()
