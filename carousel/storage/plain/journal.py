"""The journal of a folder of samples: one line a change, so that a kill loses nothing."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from xxhash import xxh3_64_hexdigest

from carousel.errors import ForeignStorageError, StorageCorruptedError
from carousel.storage.disk import sync_folder
from carousel.storage.plain.medium import Change, Contents, Place

__all__ = ["Journal"]

_FORMAT = 1
_LINE = 256


class Journal:
    """Appends changes and tells what they add up to.

    Each line is the xxh3-64 of its text in hex, a space, and JSON. A last line that is not whole
    was never acknowledged and is cut off. When most lines are history, the file is replaced by
    one that says only what there is.

    Args:
        path: the file; made when it is not there.
        sync: whether every change waits for the medium.

    Raises:
        StorageCorruptedError: a line other than the last is damaged, or the first is missing.
        ForeignStorageError: it is of a format that this version does not know.
    """

    def __init__(self, path: Path, sync: bool) -> None:
        self._path = path
        self._sync = sync
        self._state = Contents()
        self._sizes: dict[int, tuple[Place, int, str]] = {}
        self._changes = 0
        if not path.exists():
            self._replace()
        intact = self._replay()
        self._file: BinaryIO = path.open("r+b")
        self._file.truncate(intact)
        self._file.seek(intact)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._file.tell()

    def contents(self) -> Contents:
        """A copy of all that the changes add up to, by ascending id."""
        rows = [self._sizes[id_] for id_ in sorted(self._sizes)]
        return Contents(
            [place for place, _, _ in rows],
            [length for _, length, _ in rows],
            dict(self._state.quarantined),
            dict(self._state.meta),
            self._state.next_id,
        )

    def path_of(self, id_: int) -> str | None:
        """Where a sample's file lies below the folder, None when it is not stored."""
        found = self._sizes.get(id_)
        return None if found is None else f"{found[0].label}/{id_}{found[2]}"

    def append(self, change: Change, suffixes: list[str]) -> None:
        """Write a change down; raises `OSError`, and then the journal is as it was."""
        entry = _entry(change, suffixes)
        start = self._file.tell()
        try:
            self._write(entry)
        except OSError:
            self._file.truncate(start)
            self._file.seek(start)
            raise
        self._apply(entry)
        if self._changes > 4 * len(self._sizes) + 1000:
            # The change is written down already; a full disk only leaves the history in place.
            with suppress(OSError):
                self.shorten()

    def shorten(self) -> None:
        """Replace the file by one that says only what there is."""
        self._replace()
        self._file.close()
        self._file = self._path.open("r+b")
        self._file.seek(0, os.SEEK_END)
        self._changes = len(self._sizes)

    def close(self) -> None:
        """Close the file; calling it again is fine."""
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(_line(entry))
        self._file.flush()
        if self._sync:
            os.fsync(self._file.fileno())

    def _replay(self) -> int:
        intact = 0
        with self._path.open("rb") as file:
            for line in file:
                entry = _parse(line)
                if entry is None:
                    if file.read(1):
                        raise self._damaged(intact)
                    break
                if intact == 0 and entry.get("format") != _FORMAT:
                    raise ForeignStorageError(
                        f"{self._path} has format {entry.get('format')}, not {_FORMAT}"
                    )
                self._apply(entry)
                intact += len(line)
        if intact == 0:
            raise self._damaged(0)
        return intact

    def _damaged(self, at: int) -> StorageCorruptedError:
        return StorageCorruptedError(
            f"{self._path} is damaged at byte {at}; import the folder into a new storage to save "
            "its samples"
        )

    def _apply(self, entry: dict[str, Any]) -> None:
        state = self._state
        for id_ in entry.get("drop", ()):
            self._sizes.pop(id_, None)
            state.quarantined.pop(id_, None)
        for id_, reason in entry.get("aside", ()):
            self._sizes.pop(id_, None)
            state.quarantined[id_] = reason
        for id_, label, task, length, suffix in entry.get("put", ()):
            self._sizes[id_] = Place(id_, label, task), length, suffix
            state.quarantined.pop(id_, None)
        for key, value in entry.get("meta", {}).items():
            state.meta[key] = base64.b64decode(value)
        state.next_id = entry.get("next", state.next_id)
        self._changes += 1 + len(entry.get("put", ())) + len(entry.get("drop", ()))

    def _replace(self) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.writelines(_line(entry) for entry in self._snapshot())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        sync_folder(self._path.parent)

    def _snapshot(self) -> Iterator[dict[str, Any]]:
        state = self._state
        yield {
            "format": _FORMAT,
            "next": state.next_id,
            "meta": _encoded(state.meta),
            "aside": list(state.quarantined.items()),
        }
        rows = [
            [place.id, place.label, place.task, length, suffix]
            for place, length, suffix in self._sizes.values()
        ]
        for start in range(0, len(rows), _LINE):
            yield {"put": rows[start : start + _LINE]}


def _entry(change: Change, suffixes: list[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "drop": change.drop.tolist(),
        "aside": list(change.quarantine.items()),
        "put": [
            [place.id, place.label, place.task, len(blob), suffix]
            for place, blob, suffix in zip(change.places, change.blobs, suffixes, strict=True)
        ],
        "meta": _encoded(change.meta),
        "next": change.next_id,
    }
    return {key: value for key, value in entry.items() if value or value == 0}


def _encoded(meta: Any) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in meta.items()}


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()
    return b"%b %b\n" % (xxh3_64_hexdigest(text).encode(), text)


def _parse(line: bytes) -> dict[str, Any] | None:
    digest, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or digest.decode("ascii", "replace") != xxh3_64_hexdigest(text):
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry
