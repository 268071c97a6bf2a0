"""``carousel inspect``: what a storage, or a folder of optimizer states, holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from carousel.cli.flags import JsonFlag
from carousel.cli.store import StorePath, open_to_read, print_json
from carousel.report.tables import pairs_table
from carousel.report.words import bytes_text, count_text
from carousel.storage import StorageTier

if TYPE_CHECKING:
    from carousel.offload.inspection import StatesSummary

__all__ = ["inspect"]

_MOST_CLASSES = 40
_MUCH = 1.5


def inspect(path: StorePath, as_json: JsonFlag = False) -> None:
    """Show what a storage holds: samples, classes, bytes, schema, damage.

    Of a folder of optimizer states: step, parameters, chunks, bytes. Reads only, so a run may be
    using the storage meanwhile.
    """
    from carousel.offload.inspection import holds_states, summarize_states

    if holds_states(path):
        summary = summarize_states(path)
        if as_json:
            print_json({"path": str(path), "kind": "states", **asdict(summary)})
        else:
            _show_states(path, summary, Console())
        return
    with open_to_read(path) as tier:
        found = _describe(path, tier)
    if as_json:
        print_json(found)
    else:
        _show(found, Console())


def _show_states(path: Path, found: StatesSummary, console: Console) -> None:
    chunk = f"of up to {count_text(found.chunk_numel)} elements"
    unwritten = found.chunks - found.written_chunks
    rows = [
        ("step", count_text(found.step), "of the last commit"),
        ("parameters", count_text(found.parameters), f"{count_text(found.elements)} elements"),
        ("chunks", count_text(found.chunks), chunk),
        ("records", bytes_text(found.state_bytes), f"{unwritten} not written yet"),
        ("on disk", bytes_text(found.file_bytes), found.file),
        ("written", bytes_text(found.written_bytes), "in all its life"),
        ("masters", "fp32" if found.masters else "none", "of 16-bit parameters"),
        ("payload", bytes_text(found.payload_bytes), ""),
        ("durability", found.durability or "-", ""),
    ]
    console.print(pairs_table(f"Optimizer states {path}", rows))


def _describe(path: Path, tier: StorageTier) -> dict[str, Any]:
    from carousel.storage.maintenance import kind_of
    from carousel.storage.owner import read_marker

    stats = tier.stats()
    entries = tier.entries()
    marker = read_marker(path)
    sizes = entries.lengths
    return {
        "path": str(path),
        "kind": kind_of(path),
        "records": stats.records,
        "classes": {str(k): v for k, v in sorted(Counter(entries.labels.tolist()).items())},
        "tasks": {str(k): v for k, v in sorted(Counter(entries.tasks.tolist()).items())},
        "next_id": tier.high_water,
        "record_bytes": _span(sizes),
        "live_bytes": stats.live_bytes,
        "file_bytes": stats.file_bytes,
        "space_amplification": stats.space_amplification,
        "schema": _schema(tier),
        "durability": marker.durability if marker else tier.durability,
        "closed_cleanly": marker.clean if marker else None,
        "quarantine": {str(k): v for k, v in tier.quarantined().items()},
    }


def _span(sizes: np.ndarray[Any, Any]) -> dict[str, float] | None:
    if not len(sizes):
        return None
    return {"min": int(sizes.min()), "mean": float(sizes.mean()), "max": int(sizes.max())}


def _schema(tier: StorageTier) -> list[dict[str, Any]] | None:
    """The fields of a sample, as the storage keeps them or as the first record has them."""
    ids = tier.entries().ids[:1]
    records = [record for record in tier.get_many(ids) if record is not None]
    if not records:
        return None
    return [
        {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}
        for spec in records[0].layout
    ]


def _show(found: dict[str, Any], console: Console) -> None:
    size = found["record_bytes"]
    schema = found["schema"] or []
    fields = ", ".join(f"{f['name']} {f['dtype']} {tuple(f['shape'])}" for f in schema)
    damaged = len(found["quarantine"])
    amplification = found["space_amplification"]
    rows = [
        ("samples", count_text(found["records"]), f"next id {found['next_id']}"),
        ("classes", count_text(len(found["classes"])), f"tasks: {len(found['tasks'])}"),
        (
            "live",
            bytes_text(found["live_bytes"]),
            f"{bytes_text(size['mean'])} each" if size else "",
        ),
        ("on disk", bytes_text(found["file_bytes"]), _pages(amplification)),
        ("sample", fields or "-", ""),
        ("durability", found["durability"], found["kind"]),
        ("set aside", count_text(damaged), "damaged records" if damaged else "nothing damaged"),
    ]
    console.print(pairs_table(f"Storage {found['path']}", rows))
    if found["classes"]:
        console.print()
        console.print(_classes(found["classes"]))
    for number, why in list(found["quarantine"].items())[:10]:
        console.print(f"  record {number}: {why}", highlight=False)


def _pages(amplification: float) -> str:
    warning = ": small or awkward samples waste room" if amplification > _MUCH else ""
    return f"pages take {amplification:.2f} times the samples{warning}"


def _classes(counts: dict[str, int]) -> Table:
    table = Table(title="Samples by class", title_justify="left", title_style="bold", box=None)
    for heading in ("class", "samples", ""):
        table.add_column(heading, justify="right" if heading else "left")
    most = max(counts.values())
    for label, count in list(counts.items())[:_MOST_CLASSES]:
        table.add_row(label, count_text(count), "█" * max(1, round(30 * count / most)))
    if len(counts) > _MOST_CLASSES:
        table.add_row("…", f"{len(counts) - _MOST_CLASSES} more", "")
    return table
