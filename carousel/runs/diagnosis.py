"""Is this machine fit to train with a carousel: what there is, and what works."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from carousel.errors import CarouselError, StorageLockedError
from carousel.memory.machine import read_memory
from carousel.report.words import bytes_text
from carousel.runs.environment import package_versions
from carousel.storage import FieldSpec, LMDBTier, RecordBatch
from carousel.storage.disk import network_kind
from carousel.storage.lmdb.registry import is_open
from carousel.storage.owner import LOCK, MARKER, OwnerLock, read_marker

__all__ = ["Finding", "diagnose"]

_OPTIONAL = {
    "pyfiglet": "the streams figlet-94 and glyph-94",
    "tensorboard": "--logger tensorboard",
    "wandb": "--logger wandb",
    "ray": "carousel compare --ray",
}
_LEAST_DISK = 1 << 30
_LEAST_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: of the thing.
        value: what it is.
        state: ``"ok"``, ``"note"`` (works, but know this) or ``"bad"`` (will not work).
        advice: what to do, empty when there is nothing.
    """

    name: str
    value: str
    state: Literal["ok", "note", "bad"] = "ok"
    advice: str = ""


def diagnose(path: Path) -> Iterator[Finding]:
    """Look at everything, one finding after the other.

    Args:
        path: folder where runs or a storage will be; nothing stays in it.
    """
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    yield from _packages()
    yield _lmdb()
    yield from _compute()
    yield _memory()
    yield from _disk(path)


def _packages() -> Iterator[Finding]:
    versions = package_versions()
    missing = [name for name, version in versions.items() if version is None]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if missing:
        advice = f"pip install {' '.join(missing)}"
        yield Finding("packages", f"missing: {', '.join(missing)}", "bad", advice)
    yield Finding("packages", listed)
    for name, purpose in _OPTIONAL.items():
        if find_spec(name) is None:
            yield Finding(name, "not installed", "note", f"only needed for {purpose}")


def _lmdb() -> Finding:
    import lmdb

    library = ".".join(str(part) for part in lmdb.version())
    binding = "C extension" if hasattr(lmdb, "cpython") else "cffi"
    return Finding("lmdb", f"py-lmdb {lmdb.__version__}, library {library}, {binding}")


def _compute() -> Iterator[Finding]:
    import torch

    threads = torch.get_num_threads()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    fixed = os.environ.get("OMP_NUM_THREADS")
    note = f", OMP_NUM_THREADS={fixed}" if fixed else ""
    yield Finding("threads", f"torch uses {threads} of {usable} processors{note}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            size = bytes_text(torch.cuda.get_device_properties(index).total_memory)
            yield Finding("gpu", f"cuda:{index} {torch.cuda.get_device_name(index)}, {size}")
    elif torch.backends.mps.is_available():
        yield Finding("gpu", "mps")
    else:
        yield Finding("gpu", "none: training runs on the CPU")


def _memory() -> Finding:
    memory = read_memory()
    value = f"{bytes_text(memory.available)} free of {bytes_text(memory.total)}"
    if memory.available < _LEAST_MEMORY:
        return Finding("memory", value, "note", "torch and Avalanche alone take about 1 GiB")
    return Finding("memory", value)


def _disk(path: Path) -> Iterator[Finding]:
    if not path.is_dir():
        yield Finding("disk", f"{path} is not a folder", "bad", "give a folder that exists")
        return
    free = shutil.disk_usage(path).free
    value = f"{bytes_text(free)} free at {path.resolve()}"
    low = free < _LEAST_DISK
    yield Finding("disk", value, "note" if low else "ok", "give --storage-budget" if low else "")
    kind = network_kind(path)
    if kind is not None:
        yield Finding(
            "file system", kind, "note", "storage on a network is slow and its locks may not hold"
        )
    hints = "yes" if hasattr(os, "posix_fadvise") else "no: threads read ahead instead"
    yield Finding("read-ahead hints", hints)
    if (path / MARKER).is_file():
        yield _storage(path)
    yield _attempt("writing", path, _round_trip)
    yield _attempt("locks", path, _lock)


def _storage(path: Path) -> Finding:
    """State of a storage that is in the folder itself."""
    marker = read_marker(path)
    if is_open(path):  # locks do not hold within a process, and trying one would drop ours
        return Finding("storage", f"in use by process {os.getpid()}", "note")
    try:
        OwnerLock(path).release()
    except StorageLockedError as error:
        return Finding("storage", f"in use by process {error.owner_pid}", "note", str(error))
    if marker is None or not marker.clean:
        return Finding("storage", "was not closed", "note", "check it with `carousel verify`")
    return Finding("storage", f"closed cleanly, durability {marker.durability}")


def _attempt(name: str, path: Path, act: Callable[[Path], str]) -> Finding:
    try:
        with tempfile.TemporaryDirectory(dir=path, prefix=".carousel-doctor-") as folder:
            return Finding(name, act(Path(folder)))
    except (OSError, CarouselError) as error:
        return Finding(name, str(error), "bad", "choose another folder for runs and storage")


def _round_trip(folder: Path) -> str:
    """Save samples durably and read them back."""
    ids = np.arange(16)
    x = np.arange(16 * 1024, dtype=np.uint8).reshape(16, 1024)
    out = {"x": np.zeros_like(x)}
    with LMDBTier(folder / "db", durability="durable", sync=True) as tier:
        tier.reserve_ids(len(ids))
        layout = (FieldSpec("x", "uint8", (1024,)),)
        tier.put_many(RecordBatch(ids, ids, ids, layout, {"x": x}))
        tier.get_into(ids, out, ids)
    if not np.array_equal(out["x"], x):
        raise CarouselError("samples did not come back as they were saved")
    return "samples saved durably and read back"


def _lock(folder: Path) -> str:
    """Whether a second process is kept out."""
    lock = OwnerLock(folder)
    try:
        intruder = subprocess.run([sys.executable, "-c", _INTRUDE, str(folder / LOCK)], check=False)
    finally:
        lock.release()
    if intruder.returncode == 0:
        raise CarouselError("a second process could take a lock that is held")
    return "a second writer is kept out"


_INTRUDE = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(1)
"""
