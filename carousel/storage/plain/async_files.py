"""Many small files at once: aiofiles in an event loop of its own thread, so many and no more."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiofiles
import aiofiles.os

from carousel.errors import StorageClosedError
from carousel.storage.table import Buffer

__all__ = ["AsyncFiles"]

_T = TypeVar("_T")


class AsyncFiles:
    """Reads, writes and removes files in batches; a call returns when its batch is done.

    Args:
        limit: how many files are worked on at a time.
    """

    def __init__(self, limit: int = 16) -> None:
        self._loop = asyncio.new_event_loop()
        self._workers = ThreadPoolExecutor(limit, thread_name_prefix="carousel-files")
        self._loop.set_default_executor(self._workers)
        self._gate = asyncio.Semaphore(limit)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="carousel-files-loop", daemon=True
        )
        self._thread.start()
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a child's copy, whose thread stayed with the parent."""
        return os.getpid() != self._pid

    def read(self, paths: Sequence[Path]) -> list[bytes | BaseException]:
        """Contents of each file, or the error met there."""
        return self._run([self._read(path) for path in paths])

    def write(self, paths: Sequence[Path], blobs: Sequence[Buffer], sync: bool) -> None:
        """Write files, each wholly or not at all; raises the first error met, after the rest."""
        jobs = [self._write(*pair, sync) for pair in zip(paths, blobs, strict=True)]
        for result in self._run(jobs):
            if isinstance(result, BaseException):
                raise result

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove files; those that are gone already are fine."""
        self._run([self._remove(path) for path in paths])

    def close(self) -> None:
        """Stop the thread; calling it again is fine."""
        if self._loop.is_closed() or self.forked:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._workers.shutdown()
        self._loop.close()

    def _run(self, jobs: Sequence[Coroutine[Any, Any, _T]]) -> list[_T | BaseException]:
        if self.forked:
            raise StorageClosedError("the folder was opened before a fork; open it anew here")

        async def together() -> list[_T | BaseException]:
            return await asyncio.gather(*map(self._gated, jobs), return_exceptions=True)

        return asyncio.run_coroutine_threadsafe(together(), self._loop).result()

    async def _gated(self, job: Coroutine[Any, Any, _T]) -> _T:
        async with self._gate:
            return await job

    async def _read(self, path: Path) -> bytes:
        async with aiofiles.open(path, "rb") as file:
            return await file.read()

    async def _write(self, path: Path, blob: Buffer, sync: bool) -> None:
        fresh = path.with_name(path.name + ".tmp")
        async with aiofiles.open(fresh, "wb") as file:
            await file.write(blob)
            if sync:
                await file.flush()
                await self._loop.run_in_executor(None, os.fsync, file.fileno())
        await aiofiles.os.replace(fresh, path)

    async def _remove(self, path: Path) -> None:
        await aiofiles.os.remove(path)
