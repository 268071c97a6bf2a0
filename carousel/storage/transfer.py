"""Samples out of a store into readable files, and from files into a store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carousel.errors import (
    BadInputError,
    CorruptRecordError,
    SchemaMismatchError,
    StorageCorruptedError,
)
from carousel.storage.codec import decode
from carousel.storage.maintenance import open_store
from carousel.storage.plain.file_tier import JOURNAL, FileTier
from carousel.storage.plain.image_file import from_file, is_record_file, suffix_of
from carousel.storage.record import ENCODED, FieldSpec, Record, RecordBatch, numpy_dtype
from carousel.storage.schema_note import SCHEMA, extend_note
from carousel.storage.tier import Progress, StorageTier

__all__ = [
    "CLASS_NAMES",
    "AddedField",
    "ImportReport",
    "add_field",
    "check_source",
    "export_store",
    "import_store",
]

CLASS_NAMES = "class_names"
"""Meta key of the folder names that `import_store` numbered, a JSON list."""

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class AddedField:
    """A field that imported samples get when they lack it; see `add_field`."""

    spec: FieldSpec
    value: npt.NDArray[np.generic]


@dataclass(slots=True)
class ImportReport:
    """What came of an import.

    Args:
        imported: samples given to the tier.
        skipped: files that were not, and why.
        class_names: names by label, for a folder whose classes have names.
    """

    imported: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    class_names: list[str] = field(default_factory=list)


def add_field(name: str, dtype: str, shape: Sequence[int], fill: float) -> AddedField:
    """A field for samples that were stored without it, filled with one value.

    Args:
        name: of the field.
        dtype: a numpy dtype name (not bfloat16, whose values numpy cannot convert).
        shape: of one sample.
        fill: value of every element.

    Raises:
        BadInputError: the dtype is none that numpy can fill.

    Example:
        >>> add_field("logits", "float32", (10,), 0.0).spec.shape
        (10,)
    """
    if dtype in (ENCODED, "bfloat16"):
        raise BadInputError(f"dtype of field {name!r} is {dtype!r}", fix="give a numpy dtype")
    spec = FieldSpec(name, dtype, tuple(shape))
    return AddedField(spec, np.full(spec.shape, fill, numpy_dtype(dtype)))


def export_store(tier: StorageTier, folder: str | Path, progress: Progress | None = None) -> int:
    """Write every sample of a store into the layout of `FileTier`, with its meta values.

    Args:
        tier: the store; damaged samples are set aside and left out.
        folder: an empty folder or a new one.
        progress: called with samples done and all samples.

    Returns:
        How many samples were written.

    Raises:
        BadInputError: the folder holds samples already, among which some may be forgotten since.
        ForeignStorageError: the folder holds something else.
    """
    tier.flush()
    with FileTier(folder) as files:
        if len(files.entries()):
            raise BadInputError(
                f"{folder} holds {len(files.entries())} samples already",
                fix="give an empty or new folder",
            )
        count = _put(_stored(tier), len(tier.entries()), files, (), progress)
        _copy_meta(tier, files)
        return count


def import_store(
    folder: str | Path,
    tier: StorageTier,
    *,
    add: Sequence[AddedField] = (),
    progress: Progress | None = None,
) -> ImportReport:
    """Read samples from a folder into a store.

    A folder in the layout of `FileTier` (or one whose journal is damaged) gives back its samples
    as they were: ids, labels, tasks, all fields bit for bit, and meta values. Any other folder
    with a folder a class gives its JPEG and PNG files as they are, as the encoded field ``"x"``,
    under fresh ids; folders that are all whole numbers are the labels, else they are numbered in
    order of name.

    Args:
        folder: where to read.
        tier: where to write.
        add: fields to add to samples that lack them, so that an old store fits a new schema.
        progress: called with samples done and all samples.

    Raises:
        BadInputError: the folder does not exist or has no samples.
        SchemaMismatchError: a field to add is there with another dtype or shape.
        DuplicateIdError: the store holds other samples under the same ids.
        TierFullError: the store is full and its rule lets nothing leave.
    """
    source = check_source(folder)
    if not (source / JOURNAL).exists():
        return _import_files(source, tier, add, progress, images=True)
    try:
        files = open_store(source)
    except StorageCorruptedError:
        return _import_files(source, tier, add, progress, images=False)
    with files:
        count = _put(_stored(files), len(files.entries()), tier, add, progress)
        _copy_meta(files, tier, add)
        damaged = {f"id {id_}": reason for id_, reason in files.quarantined().items()}
        return ImportReport(count, damaged)


def check_source(folder: str | Path) -> Path:
    """The folder, if `import_store` finds samples in it: nothing needs to be made for one without.

    Raises:
        BadInputError: it is no folder, or holds neither an export nor images in a folder a class.
    """
    source = Path(folder)
    if not source.is_dir():
        raise BadInputError(f"{source} is not a folder", fix="give a folder of samples")
    if not (source / JOURNAL).exists() and not any(map(_is_sample, _files_of(source))):
        raise BadInputError(
            f"{source} holds no samples",
            fix="give a folder of samples: an export, or JPEG and PNG files in a folder a class",
        )
    return source


def _files_of(source: Path) -> list[Path]:
    return [
        path
        for path in sorted(source.glob("*/*"))
        if path.is_file() and not path.parent.name.startswith(".")
    ]


def _is_sample(path: Path) -> bool:
    data = path.read_bytes()
    return is_record_file(data) or suffix_of(data) != ".rec"


def _copy_meta(source: StorageTier, target: StorageTier, add: Sequence[AddedField] = ()) -> None:
    values = {key: source.get_meta(key) or b"" for key in source.meta_keys()}
    if add and SCHEMA in values:
        values[SCHEMA] = extend_note(values[SCHEMA], [extra.spec for extra in add])
    target.put_meta(values)
    target.reserve_ids(max(0, source.high_water - target.high_water))
    target.flush()


def _put(
    records: Iterable[Record],
    total: int,
    target: StorageTier,
    add: Sequence[AddedField],
    progress: Progress | None,
) -> int:
    done = 0
    for batch in _batches(records):
        target.put_many(_with_fields(batch, add))
        done += len(batch)
        if progress is not None:
            progress(done, total)
    target.flush()
    return done


def _stored(tier: StorageTier) -> Iterator[Record]:
    ids = tier.entries().ids
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        tier.prefetch(part)
        yield from (record for record in tier.get_many(part) if record is not None)


def _batches(records: Iterable[Record]) -> Iterator[RecordBatch]:
    """Neighbours of one layout together, a few at a time."""
    for layout, group in groupby(records, key=lambda record: record.layout):
        members: list[Record] = []
        for record in group:
            members.append(record)
            if len(members) == _CHUNK:
                yield _batch(layout, members)
                members = []
        if members:
            yield _batch(layout, members)


def _batch(layout: tuple[FieldSpec, ...], records: list[Record]) -> RecordBatch:
    return RecordBatch(
        np.array([record.id for record in records], np.int64),
        np.array([record.label for record in records], np.int64),
        np.array([record.task for record in records], np.int64),
        layout,
        {
            spec.name: [record.fields[spec.name] for record in records]  # type: ignore[misc]
            if spec.dtype == ENCODED
            else np.stack([np.asarray(record.fields[spec.name]) for record in records])
            for spec in layout
        },
    )


def _with_fields(batch: RecordBatch, add: Sequence[AddedField]) -> RecordBatch:
    have = {spec.name: spec for spec in batch.layout}
    layout, fields = batch.layout, dict(batch.fields)
    for extra in add:
        spec = extra.spec
        if spec.name not in have:
            layout = (*layout, spec)
            fields[spec.name] = np.broadcast_to(extra.value, (len(batch), *spec.shape))
        elif have[spec.name] != spec:
            raise SchemaMismatchError(
                f"field {spec.name!r} is stored as {have[spec.name]}",
                fix=f"it cannot become {spec}",
            )
    return RecordBatch(batch.ids, batch.labels, batch.tasks, layout, fields)


def _import_files(
    source: Path,
    tier: StorageTier,
    add: Sequence[AddedField],
    progress: Progress | None,
    *,
    images: bool,
) -> ImportReport:
    """Import files one by one; `images`: also those that are no samples of Carousel."""
    paths = _files_of(source)
    names = sorted({path.parent.name for path in paths})
    if not names:
        raise BadInputError(
            f"{source} has no samples", fix="give a folder that has a folder of images a class"
        )
    numbers = all(name.lstrip("-").isdigit() for name in names)
    labels = {name: int(name) if numbers else at for at, name in enumerate(names)}
    report = ImportReport(class_names=[] if numbers else names)
    records = _read_files(paths, labels if images else None, tier, report)
    report.imported = _put(records, len(paths), tier, add, progress)
    if report.class_names:
        tier.put_meta({CLASS_NAMES: json.dumps(names).encode()})
    return report


def _read_files(
    paths: Sequence[Path],
    labels: Mapping[str, int] | None,
    tier: StorageTier,
    report: ImportReport,
) -> Iterator[Record]:
    first = tier.reserve_ids(len(paths)) if labels else 0
    for id_, path in enumerate(paths, start=first):
        data = path.read_bytes()
        try:
            if is_record_file(data):
                yield decode(from_file(data))
            elif labels is not None and suffix_of(data) != ".rec":
                label = labels[path.parent.name]
                yield Record(id_, label, 0, (FieldSpec("x", ENCODED),), {"x": data})
            else:
                report.skipped[str(path)] = "it is no sample that this version can read"
        except CorruptRecordError as error:
            report.skipped[str(path)] = str(error)
