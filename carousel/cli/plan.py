"""``carousel plan``: what fits into a memory and a storage, before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from carousel.cli.flags import JsonFlag
from carousel.cli.store import print_json
from carousel.report.tables import pairs_table
from carousel.report.words import bytes_text, count_text, percent_text

__all__ = ["plan"]


def plan(
    *,
    benchmark: Annotated[
        str, typer.Option(metavar="NAME", help="Stream to plan for; see `carousel benchmarks`.")
    ] = "split-digits",
    shape: Annotated[
        str | None,
        typer.Option(metavar="CxHxW", help="Samples of your own instead, such as 3x224x224."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Type of their values. [dim]\\[uint8][/dim]"),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="How many of them will be learned. [dim]\\[50000][/dim]"
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Their classes. [dim]\\[10][/dim]"),
    ] = None,
    memory_size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="Memory to plan: 500 (samples) or 64MiB; repeatable. [dim]\\[several][/dim]",
        ),
    ] = None,
    storage_budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Most that storage may hold: 5000, 1GiB or 50%."),
    ] = None,
    storage: Annotated[
        Path, typer.Option(metavar="PATH", help="Where the storage will be.")
    ] = Path(),
    swap_ratio: Annotated[
        float, typer.Option(metavar="X", min=0, max=1, help="Share of a batch to swap.")
    ] = 0.5,
    batch_size_mem: Annotated[
        int, typer.Option(metavar="N", min=1, help="Replayed samples a step.")
    ] = 32,
    as_json: JsonFlag = False,
) -> None:
    """Show how many samples fit into RAM and storage, with advice."""
    from carousel.runs.planning import plan_run, stream_of

    stream = stream_of(benchmark, shape, dtype, samples, classes)
    found = plan_run(
        stream,
        memory_sizes=memory_size,
        storage=storage,
        storage_budget=storage_budget,
        swap_ratio=swap_ratio,
        batch_size_mem=batch_size_mem,
    )
    if as_json:
        print_json(found)
    else:
        _show(found, Console())


def _show(found: dict[str, Any], console: Console) -> None:
    sample, storage, swaps = found["sample"], found["storage"], found["swaps"]
    shape = "x".join(str(size) for size in sample["shape"])
    rows = [
        ("stream", count_text(found["samples"]), f"samples to learn, {found['classes']} classes"),
        ("a sample in RAM", bytes_text(sample["ram_bytes"]), f"{sample['dtype']} {shape}"),
        (
            "a sample on disk",
            bytes_text(sample["disk_bytes"]),
            f"{sample['space_amplification']:.2f} times its size, with header and page rounding",
        ),
        ("the whole stream", bytes_text(storage["stream_bytes"]), f"live bytes, {found['name']}"),
        ("the storage file", bytes_text(storage["file_bytes"]), "at most about, with pages in use"),
        ("free on that disk", bytes_text(storage["free_bytes"]), storage["path"]),
    ]
    if storage["budget_samples"] is not None:
        fits = percent_text(storage["share_of_stream"])
        budget = f"at least, by the budget: {fits} of the stream"
        rows.append(("kept in storage", count_text(storage["budget_samples"]), budget))
    step = f"of {swaps['batch']} replayed at swap ratio {swaps['ratio']:g}"
    rows.append(("swaps a step", count_text(swaps["a_step"]), step))
    console.print(pairs_table("Plan", rows))
    console.print()
    console.print(_memories(found["memories"]))
    console.print()
    for line in found["advice"]:
        console.print(f"- {line}", highlight=False)


def _memories(memories: list[dict[str, Any]]) -> Table:
    table = Table(title="Memory", title_justify="left", title_style="bold", box=None)
    for heading in ("memory size", "samples", "spares", "RAM", "a class", "of the stream"):
        table.add_column(heading, justify="right")
    for row in memories:
        table.add_row(
            str(row["memory_size"]),
            count_text(row["slots"]),
            count_text(row["spares"]),
            bytes_text(row["ram_bytes"]),
            f"{row['slots_a_class']:.1f}",
            percent_text(row["share_of_stream"]),
        )
    return table
