"""What a folder of optimizer states holds, and whether all of it is intact, beside its owner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carousel.errors import BadInputError, CarouselError, CorruptRecordError, StorageError
from carousel.offload.commit import Commit, is_commit_log, read_commit
from carousel.offload.home import has_states_file, plan_of
from carousel.offload.plan import Plan
from carousel.offload.record import RecordLayout, layout_of
from carousel.offload.states_file import StatesFile
from carousel.storage import maintenance
from carousel.storage.lmdb.registry import is_open
from carousel.storage.owner import read_marker
from carousel.storage.tier import Durability, Progress, VerifyReport

__all__ = ["StatesSummary", "holds_states", "summarize_states", "verify_states"]


@dataclass(frozen=True, slots=True)
class StatesSummary:
    """What the newest commit of a folder says; sizes in bytes.

    Args:
        step: steps of the optimizer that it covers.
        parameters, elements: of the optimizer.
        chunks: that the states are cut into.
        written_chunks: those of them that have a record.
        chunk_numel: most elements of a chunk.
        masters: whether 16-bit parameters have fp32 values.
        state_bytes: of the records, each once.
        file_bytes: disk space of the states' file; 0 when it is missing.
        payload_bytes: of the caller's payload.
        written_bytes: of records to the folder since it was made.
        file: name of the states' file.
        durability: that the folder was opened with last.
        closed_cleanly: whether it was closed since; always True for modes that need it not.
    """

    step: int
    parameters: int
    elements: int
    chunks: int
    written_chunks: int
    chunk_numel: int
    masters: bool
    state_bytes: int
    file_bytes: int
    payload_bytes: int
    written_bytes: int
    file: str
    durability: Durability | None
    closed_cleanly: bool | None


def holds_states(folder: Path) -> bool:
    """Whether a folder is an optimizer's, even when its states' file is missing."""
    if has_states_file(folder):
        return True
    try:
        if maintenance.kind_of(folder) != "lmdb":
            return False
        with maintenance.open_store(folder, readonly=True) as tier:
            return is_commit_log(tier)
    except CarouselError:
        return False


def summarize_states(folder: Path) -> StatesSummary:
    """The newest commit in figures; reads only, so a run may be using the folder.

    Raises:
        BadInputError: there is no commit. `StorageError`: it cannot be read.
    """
    found = _Committed.of(folder)
    marker = read_marker(folder)
    file = folder / found.commit.file
    return StatesSummary(
        step=found.commit.moment.step,
        parameters=len(found.plan.specs),
        elements=sum(spec.numel for spec in found.plan.specs),
        chunks=len(found.plan.chunks),
        written_chunks=sum(place >= 0 for place in found.commit.chunks.places),
        chunk_numel=found.plan.chunk_numel,
        masters=found.masters,
        state_bytes=sum(layout.nbytes for layout in found.layouts),
        file_bytes=file.stat().st_size if file.exists() else 0,
        payload_bytes=len(found.commit.moment.payload),
        written_bytes=found.commit.written_bytes,
        file=found.commit.file,
        durability=marker.durability if marker else None,
        closed_cleanly=marker.clean if marker else None,
    )


def verify_states(folder: Path, progress: Progress | None = None) -> VerifyReport:
    """Check the commit log, and every field of every record that the newest commit names.

    Nothing is written to the states' file. A run may go on meanwhile: a record that it replaced
    is looked for again where the commit of then has it.

    Args:
        folder: of an optimizer.
        progress: called with chunks done and all chunks.

    Raises:
        BadInputError: there is no commit to check.
        UncleanStorageError: the folder's durability did not survive how its owner ended.
    """
    report = _verify_log(folder)
    report.checked = 0  # it counted samples
    if not report.ok:
        return report
    try:
        with _reading(folder) as (found, file):
            _verify_chunks(folder, found, file, report, progress)
    except BadInputError:
        raise
    except StorageError as error:
        report.problems.append(str(error))
    return report


def _verify_log(folder: Path) -> VerifyReport:
    if not is_open(folder):
        return maintenance.verify_store(folder)
    with maintenance.open_store(
        folder, readonly=True
    ) as tier:  # shared with the optimizer of this process
        return tier.verify()


@dataclass(frozen=True, slots=True)
class _Committed:
    plan: Plan
    masters: bool
    commit: Commit
    layouts: tuple[RecordLayout, ...]

    @staticmethod
    def of(folder: Path) -> _Committed:
        with maintenance.open_store(folder, readonly=True) as tier:
            plan, options, commit = plan_of(read_commit(tier, folder), folder)
        masters = bool(options["masters"])
        layouts = tuple(layout_of(c, masters=masters, recoverable=True) for c in plan.chunks)
        return _Committed(plan, masters, commit, layouts)


@contextmanager
def _reading(folder: Path) -> Iterator[tuple[_Committed, StatesFile]]:
    found = _Committed.of(folder)
    sizes = [layout.nbytes for layout in found.layouts]
    file = StatesFile(folder / found.commit.file, found.commit.plan, sizes, readonly=True)
    try:
        yield found, file
    finally:
        file.close()


def _verify_chunks(
    folder: Path,
    found: _Committed,
    file: StatesFile,
    report: VerifyReport,
    progress: Progress | None,
) -> None:
    largest = np.empty(max((layout.nbytes for layout in found.layouts), default=0), np.uint8)
    for number, layout in enumerate(found.layouts):
        record = largest[: layout.nbytes]
        while found.commit.chunks.places[number] >= 0:
            place, step = found.commit.chunks.places[number], found.commit.chunks.steps[number]
            try:
                file.read(number, place, record)
                names = [part.name for part in layout.fields]
                layout.check(record, found.commit.plan, number, step, names=names)
            except CorruptRecordError as error:
                now = _Committed.of(folder)
                if now.commit.file != found.commit.file:
                    raise StorageError(
                        "the states were moved to another file meanwhile; verify again"
                    ) from error
                if now.commit != found.commit:
                    found = now
                    continue
                report.corrupt[number] = str(error)
            report.checked += 1
            break
        if progress is not None:
            progress(number + 1, len(found.layouts))
