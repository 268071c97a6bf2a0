"""How close the storage tier comes to memory and to the medium, and what its batches save.

Warm reads are compared by CPU time with a gather in RAM, since that is what a background worker
takes from training; cold reads by wall time with LMDB as it comes and with reading the same bytes
one by one. Every pair runs interleaved in this process, and medians of the paired ratios count.

Run with ``python -m benchmarks.storage_io [--json FILE]``; takes two to three minutes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks._harness import Row, interleave, parse_arguments, report
from carousel.storage import FieldSpec, LMDBTier, RecordBatch

Ids = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

BATCH = 64
AHEAD = 128
SIZES = {"3 KB": 3072, "20 KB": 20_480, "150 KB": 153_600}
WARM_BYTES = 96 << 20
WARM_TARGETS = {"3 KB": 0.15, "20 KB": 0.40, "150 KB": 0.55}
COLD_TARGETS = {"3 KB": 1.5, "20 KB": None, "150 KB": 3.0}
COLD_SAMPLES = {"3 KB": 1024, "20 KB": 512, "150 KB": 192}
COLD_RECORDS = {"3 KB": 32_768, "20 KB": 8192, "150 KB": 1024}


def main() -> None:
    """Measure, print the table, write the JSON."""
    arguments = parse_arguments(__doc__)
    rows = [row for name in SIZES for row in warm(name)]
    rows += [row for name in SIZES for row in cold(name)]
    rows += [*group_commit(), *turnover(), *against_png_files()]
    report(rows, "storage_io", arguments.json)


def warm(name: str) -> list[Row]:
    """Random batches of 64 from the page cache against `numpy.take` from an array in RAM."""
    nbytes, count = SIZES[name], WARM_BYTES // SIZES[name]
    with filled_tier(nbytes, count) as (tier, samples):
        out = np.empty((BATCH, nbytes), np.uint8)
        rows = np.arange(BATCH)
        draws = {side: random_batches(count, 2048 if nbytes < 10_000 else 512) for side in "tr"}

        def read_tier() -> float:
            batches = next(draws["t"])
            start = time.thread_time()
            for ids in batches:
                tier.get_into(ids, {"x": out}, rows)
            return time.thread_time() - start

        def gather() -> float:
            batches = next(draws["r"])
            start = time.thread_time()
            for ids in batches:
                np.take(samples, ids, axis=0, out=out, mode="clip")
            return time.thread_time() - start

        costs = interleave({"tier": read_tier, "ram": gather}, 40, warm_up=4)
    ratio = float(np.median(costs["ram"] / costs["tier"]))
    return [Row.at_least(f"warm get_into / RAM gather, {name}", ratio, WARM_TARGETS[name])]


def cold(name: str) -> list[Row]:
    """Batches of 64 from the medium: prefetched, LMDB as it comes, and `preadv` one by one."""
    nbytes, count = SIZES[name], COLD_RECORDS[name]
    with filled_tier(nbytes, count) as (tier, _):
        folder = tier.path
        found = tier._store.index.lookup(np.arange(count))
        tier.close()
        picks: Iterator[Ids] = iter(random_picks(count, COLD_SAMPLES[name]))
        costs = interleave(
            {
                "prefetched": lambda: cold_tier(folder, nbytes, next(picks)),
                "default": lambda: cold_lmdb(folder, nbytes, next(picks)),
                "preadv": lambda: cold_preadv(folder, nbytes, found.offsets, next(picks)),
            },
            9,
        )
    default = float(np.median(costs["default"] / costs["prefetched"]))
    single = float(np.median(costs["preadv"] / costs["prefetched"]))
    title = f"cold prefetched reads / LMDB as it comes, {name}"
    target = COLD_TARGETS[name]
    return [
        Row(title, default) if target is None else Row.at_least(title, default, target),
        Row.at_least(f"cold prefetched reads / preadv one by one, {name}", single, 1.2),
    ]


def group_commit() -> list[Row]:
    """Durable records a second, committed 256 at a time against one at a time."""
    starts = iter(range(0, 1 << 30, 1 << 12))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        tier = LMDBTier(Path(folder) / "db", durability="durable", sync=True)

        def save(batches: int, size: int) -> Callable[[], float]:
            def run() -> float:
                first = next(starts)
                parts = [records(first + i * size, size, 3072)[0] for i in range(batches)]
                start = time.perf_counter()
                for part in parts:
                    tier.put_many(part)
                return (time.perf_counter() - start) / (batches * size)

            return run

        costs = interleave({"grouped": save(4, 256), "single": save(12, 1)}, 15)
        tier.close()
    ratio = float(np.median(costs["single"] / costs["grouped"]))
    return [Row.at_least("durable commits of 256 / of 1, 3 KB, records a second", ratio, 30)]


def turnover() -> list[Row]:
    """Growth of the file while all records are replaced five times, and transactions left open."""
    count, step = 4096, 256
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        LMDBTier(
            Path(folder) / "db", budget=count, eviction="fifo", durability="process", sync=True
        ) as tier,
    ):
        sizes = []
        out, rows = {"x": np.empty((BATCH, 3072), np.uint8)}, np.arange(BATCH)
        for first in range(0, 6 * count, step):
            tier.put_many(records(first, step, 3072)[0])
            tier.get_into(tier.entries().ids[:BATCH], out, rows)
            sizes.append(data_bytes(tier.path))
        readers = tier._store.env._env.readers().splitlines()[1:]
        left_open = sum(not line.endswith("-") for line in readers)
    growth = sizes[-1] / sizes[count // step - 1]
    return [
        Row.at_most("file bytes after 5 turnovers / when filled", growth, 1.25),
        Row.at_most("read transactions open between batches", left_open, 0),
    ]


def against_png_files() -> list[Row]:
    """Samples a second into the slab, against one PNG file a sample as in the official code."""
    count, shape = 4096, (32, 32, 3)
    with filled_tier(3072, count) as (tier, samples), tempfile.TemporaryDirectory(dir=".") as other:
        files = [Path(other) / f"{id_ % 10}" / f"{id_}.png" for id_ in range(count)]
        for label in range(10):
            (Path(other) / str(label)).mkdir()
        for file, sample in zip(files, samples, strict=True):
            Image.fromarray(sample.reshape(shape)).save(file)
        out = np.empty((BATCH, 3072), np.uint8)
        images, rows = out.reshape(BATCH, *shape), np.arange(BATCH)
        batches = next(random_batches(count, 1024))

        def from_tier() -> float:
            start = time.thread_time()
            for ids in batches:
                tier.get_into(ids, {"x": out}, rows)
            return time.thread_time() - start

        def from_files() -> float:
            start = time.thread_time()
            for ids in batches:
                for row, id_ in enumerate(ids.tolist()):
                    with Image.open(files[id_]) as image:
                        images[row] = np.asarray(image.convert("RGB"))
            return time.thread_time() - start

        costs = interleave({"tier": from_tier, "files": from_files}, 15)
    ratio = float(np.median(costs["files"] / costs["tier"]))
    return [Row.at_least("swap-ins / those from PNG files, 32x32x3, warm", ratio, 10)]


@contextmanager
def filled_tier(nbytes: int, count: int) -> Iterator[tuple[LMDBTier, Pixels]]:
    """A tier with `count` samples of one size on the disk of the working folder."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        tier = LMDBTier(Path(folder) / "db", durability="process")
        batch, samples = records(0, count, nbytes)
        tier.put_many(batch)
        tier.flush()
        try:
            yield tier, samples
        finally:
            tier.close()


def records(first: int, count: int, nbytes: int) -> tuple[RecordBatch, Pixels]:
    """Random samples with ids from `first`."""
    ids = np.arange(first, first + count)
    samples = np.random.default_rng(first).integers(0, 256, (count, nbytes), np.uint8)
    layout = (FieldSpec("x", "uint8", (nbytes,)),)
    return RecordBatch(ids, ids % 10, np.zeros(count, np.int64), layout, {"x": samples}), samples


def random_batches(count: int, samples: int) -> Iterator[list[Ids]]:
    """Ids of `samples` random records, 64 at a time, ever new."""
    rng = np.random.default_rng(1)
    while True:
        yield [rng.choice(count, BATCH, replace=False) for _ in range(samples // BATCH)]


def random_picks(count: int, samples: int) -> Iterator[Ids]:
    """Ever new random ids."""
    rng = np.random.default_rng(2)
    while True:
        yield rng.choice(count, samples, replace=False)


def cold_tier(folder: Path, nbytes: int, picks: Ids) -> float:
    """Seconds to read through the tier, 128 samples asked for ahead."""
    drop_cache(folder)
    out = {"x": np.empty((BATCH, nbytes), np.uint8)}
    rows = np.arange(BATCH)
    with LMDBTier(folder, readonly=True) as tier:
        start = time.perf_counter()
        tier.prefetch(picks[:AHEAD])
        for at in range(0, len(picks), BATCH):
            tier.prefetch(picks[at + AHEAD : at + AHEAD + BATCH])
            status = tier.get_into(picks[at : at + BATCH], out, rows)
            assert not status.any()
        return time.perf_counter() - start


def cold_lmdb(folder: Path, nbytes: int, picks: Ids) -> float:
    """Seconds to read with `lmdb.open`'s defaults, one get a sample."""
    drop_cache(folder)
    out = np.empty((BATCH, nbytes), np.uint8)
    env = lmdb.open(str(folder), readonly=True, max_dbs=8)
    database = env.open_db(b"samples", create=False)
    start = time.perf_counter()
    for at in range(0, len(picks), BATCH):
        with env.begin(db=database, buffers=True) as txn:
            for row, id_ in enumerate(picks[at : at + BATCH].tolist()):
                value = txn.get(id_.to_bytes(8, "big"))
                out[row] = np.frombuffer(value, np.uint8)[-nbytes:]
    seconds = time.perf_counter() - start
    env.close()
    return seconds


def cold_preadv(folder: Path, nbytes: int, offsets: Ids, picks: Ids) -> float:
    """Seconds to read the same bytes with one call a sample."""
    drop_cache(folder)
    buffer = bytearray(nbytes + 4096)
    file = os.open(folder / "data.mdb", os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    places = offsets[picks].tolist()
    start = time.perf_counter()
    for place in places:
        os.preadv(file, [buffer], place)
    seconds = time.perf_counter() - start
    os.close(file)
    return seconds


def drop_cache(folder: Path) -> None:
    """Take the data file, which nothing may have mapped, out of the page cache."""
    file = os.open(folder / "data.mdb", os.O_RDWR)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def data_bytes(folder: Path) -> int:
    """Size of the data file."""
    return (folder / "data.mdb").stat().st_size


if __name__ == "__main__":
    main()
