"""A tier of one file a sample and one folder a class: for import, export, and for people.

The layout of the folder::

    path/
      <label>/<id>.png     a sample with uint8 pixels: a PNG that any viewer shows
      <label>/<id>.jpg     a sample whose JPEG (or PNG) bytes were stored as they came
      <label>/<id>.rec     any other sample: the bytes of `carousel.storage.codec`
      <label>/<id>.1.png   (or .1.jpg, .1.rec) the same after every other revision
      journal.jsonl        which samples are stored, meta values, the next id; one line a change
      carousel.json        identity and whether it was closed; owner.lock while it is open

After an image, its file goes on with the label, task and all other fields, under a checksum
(see `carousel.storage.plain.image_file`), so that a sample comes back bit for bit, also out of a
file alone. It is the layout of the official code of CarM (Lee et al., DAC 2022), which keeps a PNG
a sample under a folder a class, made safe: files are replaced in one step and a change counts once
the journal has it.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from carousel.errors import (
    BadInputError,
    CorruptRecordError,
    ForeignStorageError,
    StorageLockedError,
)
from carousel.storage.budget import BudgetLike, parse_budget
from carousel.storage.creation import own_folder
from carousel.storage.disk import sync_folder
from carousel.storage.eviction import Eviction, make_eviction
from carousel.storage.owner import (
    Marker,
    boot_id,
    read_marker,
    refuse_unclean,
    write_marker,
)
from carousel.storage.plain.async_files import AsyncFiles
from carousel.storage.plain.image_file import from_file, suffix_of, to_file
from carousel.storage.plain.journal import Journal
from carousel.storage.plain.medium import Change, Contents, Place, Read
from carousel.storage.plain.tier import PlainTier
from carousel.storage.table import Buffer
from carousel.storage.tier import Durability

__all__ = ["JOURNAL", "FileTier"]

JOURNAL = "journal.jsonl"


class FileTier(PlainTier):
    """Keeps every sample in a file of its own.

    Correct before fast: a call has happened when it returns, and reading a sample decodes an
    image. `LMDBTier` is the tier to train with.

    Args:
        path: the folder, made when it is not there.
        budget: records, bytes (of the samples' files), share of the free disk, or None.
        eviction: a rule or its name; default `ClassReservoir`.
        durability: ``"process"`` (default; checked at open) or ``"durable"`` (every file and
            journal line is synced).
        seed: of the default rule.
        concurrency: files read or written at a time.

    Raises:
        BadInputError: the path is a file, or the durability is another one.
        ForeignStorageError: the folder holds something else.
        StorageLockedError: the folder is open already.
        StorageCorruptedError: the journal is damaged.

    Example:
        >>> import tempfile
        >>> with FileTier(tempfile.mkdtemp()) as tier:
        ...     tier.reserve_ids(3)
        0
    """

    def __init__(
        self,
        path: str | Path,
        *,
        budget: BudgetLike = None,
        eviction: Eviction | str | None = None,
        durability: Durability = "process",
        seed: int = 0,
        concurrency: int = 16,
    ) -> None:
        if durability not in ("process", "durable"):
            raise BadInputError(
                f"durability is {durability!r}", fix="give 'process' or 'durable' for files"
            )
        rule, folder = make_eviction(eviction, seed), Path(path)
        limits = parse_budget(budget)
        _check_folder(folder)
        self.path = folder.absolute()
        self._files = _Folder(folder, durability, concurrency)
        try:
            super().__init__(self._files, limits.resolve(folder), rule, durability)
        except BaseException:
            self._files.close()
            raise

    def shorten_journal(self) -> None:
        """Write the journal anew with only what is stored."""
        with self._lock:
            self._check_open()
            self._files.shorten_journal()


class _Folder:
    """A medium of files, journaled."""

    def __init__(self, folder: Path, durability: Durability, concurrency: int) -> None:
        self._folder = folder.resolve()
        self._sync = durability == "durable"
        self._claim = _Claim(self._folder)
        try:
            marker = read_marker(folder) or Marker(str(uuid.uuid4()), durability, "", True)
            refuse_unclean(folder, marker)
            self._journal = Journal(folder / JOURNAL, self._sync)
            if not marker.clean:
                self._sweep()
            self._marker = Marker(marker.uuid, durability, boot_id(), False)
            write_marker(folder, self._marker)
        except BaseException:
            self._claim.release()
            raise
        self._files = AsyncFiles(concurrency)
        self._size = sum(self._journal.contents().lengths)
        self._closed = False

    @property
    def identity(self) -> str:
        return self._marker.uuid

    def open(self) -> Contents:
        return self._journal.contents()

    def pack(self, record: Buffer) -> Buffer:
        return to_file(record)

    def commit(self, change: Change) -> None:
        suffixes = [
            self._free_suffix(place, suffix_of(blob))
            for place, blob in zip(change.places, change.blobs, strict=True)
        ]
        fresh = [
            self._folder / _below(place, suffix)
            for place, suffix in zip(change.places, suffixes, strict=True)
        ]
        replaced = [place.id for place in change.places]
        leaving = [*change.drop.tolist(), *change.quarantine, *replaced]
        old = [self._path(id_) for id_ in leaving]
        try:
            self._write(fresh, change.blobs)
            self._journal.append(change, suffixes)
        except OSError:
            self._files.remove([*fresh, *(path.with_name(path.name + ".tmp") for path in fresh)])
            raise
        self._size += sum(len(blob) for blob in change.blobs)
        gone = [path for path in old if path]
        self._size -= sum(path.stat().st_size for path in gone if path.exists())
        self._files.remove(gone)

    def read(self, ids: Sequence[int]) -> list[Read]:
        paths = [self._path(id_) for id_ in ids]
        contents = iter(self._files.read([path for path in paths if path]))
        return [_record(next(contents)) if path else KeyError("not stored") for path in paths]

    def problems(self) -> list[str]:
        unknown = sum(1 for _ in self._unknown())
        return [f"{unknown} files are not in the journal"] if unknown else []

    def shorten_journal(self) -> None:
        self._journal.shorten()

    def file_bytes(self) -> int:
        return self._size + (0 if self._closed else self._journal.nbytes)

    def close(self) -> None:
        if self._closed or self._files.forked:
            return
        self._closed = True
        self._files.close()
        self._journal.close()
        write_marker(self._folder, Marker(self._marker.uuid, self._marker.durability, "", True))
        self._claim.release()

    def _path(self, id_: int) -> Path | None:
        below = self._journal.path_of(id_)
        return None if below is None else self._folder / below

    def _free_suffix(self, place: Place, suffix: str) -> str:
        """A suffix that leaves the file of now alone: it counts until the journal has the new."""
        taken = self._journal.path_of(place.id) == _below(place, suffix)
        return f".1{suffix}" if taken else suffix

    def _write(self, paths: Sequence[Path], blobs: Sequence[Buffer]) -> None:
        folders = {path.parent for path in paths}
        for folder in folders:
            folder.mkdir(exist_ok=True)
        self._files.write(paths, blobs, self._sync)
        if self._sync:
            for folder in {*folders, self._folder} if folders else ():
                sync_folder(folder)

    def _sweep(self) -> None:
        """Remove what a killed owner wrote but never entered in the journal."""
        for path in list(self._unknown()):
            path.unlink()

    def _unknown(self) -> Iterator[Path]:
        for folder in self._folder.iterdir():
            if not folder.is_dir() or not folder.name.lstrip("-").isdigit():
                continue
            for path in folder.iterdir():
                stem = path.name.partition(".")[0]
                if stem.isdigit() and path != self._path(int(stem)):
                    yield path


class _Claim:
    """The right to a folder, among processes and within this one."""

    def __init__(self, folder: Path) -> None:
        with _claims_lock:
            if folder in _claims:
                raise StorageLockedError(
                    f"{folder} is open already in this process; close it first", os.getpid()
                )
            self._owner = own_folder(folder)
            _claims.add(folder)
        self._folder = folder

    def release(self) -> None:
        with _claims_lock:
            _claims.discard(self._folder)
            self._owner.release()


_claims: set[Path] = set()
_claims_lock = threading.Lock()


def _below(place: Place, suffix: str) -> str:
    return f"{place.label}/{place.id}{suffix}"


def _record(content: bytes | BaseException) -> Read:
    if isinstance(content, FileNotFoundError):
        return CorruptRecordError("its file is missing")
    if isinstance(content, OSError):
        return content
    if isinstance(content, BaseException):
        raise content
    try:
        return from_file(content)
    except CorruptRecordError as error:
        return error


def _check_folder(folder: Path) -> None:
    if not folder.is_dir() or (folder / JOURNAL).exists():
        return
    if any(entry.name not in ("owner.lock", "carousel.json") for entry in folder.iterdir()):
        raise ForeignStorageError(
            f"{folder} holds files that are no Carousel folder of samples; use an empty folder, "
            "or import it into one"
        )
