"""``carousel forget``: remove samples for good."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from carousel.cli.flags import JsonFlag
from carousel.cli.store import StorePath, print_json, progress_of
from carousel.errors import BadInputError
from carousel.report.words import count_text
from carousel.storage import StorageTier
from carousel.storage.columns import Ids

__all__ = ["forget"]

Several = list[int] | None


def forget(
    path: StorePath,
    *,
    ids: Annotated[
        Several, typer.Option("--id", metavar="N", help="Sample of this id; repeatable.")
    ] = None,
    labels: Annotated[
        Several, typer.Option("--class", metavar="N", help="All samples of this class; repeatable.")
    ] = None,
    tasks: Annotated[
        Several, typer.Option("--task", metavar="N", help="All samples of this task; repeatable.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All samples.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove samples by id, class or task; `carousel compact` then wipes their bytes."""
    from carousel.storage.maintenance import forget as remove
    from carousel.storage.maintenance import open_store

    if not (ids or labels or tasks or everything):
        raise BadInputError("nothing to forget is named", fix="give --id, --class, --task or --all")
    with open_store(path) as tier:
        count = _count(tier, ids or [], labels or [], tasks or [], everything)
        if not count:
            _refuse(tier, ids or [], labels or [], tasks or [])
        if count and not yes:
            _ask(count, as_json)
        with progress_of("forgetting", show=not as_json) as progress:
            removed = remove(
                tier,
                ids=ids or [],
                labels=labels or [],
                tasks=tasks or [],
                everything=everything,
                progress=progress,
            )
        left = tier.stats().records
    if as_json:
        print_json({"forgotten": removed, "left": left})
        return
    Console(highlight=False, soft_wrap=True).print(
        f"{count_text(removed)} samples forgotten, {count_text(left)} left"
        + (f"; their bytes go with `carousel compact {path}`" if removed else "")
    )


def _count(
    tier: StorageTier, ids: list[int], labels: list[int], tasks: list[int], everything: bool
) -> int:
    entries = tier.entries()
    named = np.isin(entries.ids, ids) | np.isin(entries.labels, labels)
    named |= np.isin(entries.tasks, tasks)
    return int((named | everything).sum())


def _ask(count: int, as_json: bool) -> None:
    if as_json:
        raise BadInputError("--json cannot ask whether to forget", fix="give --yes as well")
    typer.confirm(f"Forget {count_text(count)} samples for good?", abort=True)


def _refuse(tier: StorageTier, ids: list[int], labels: list[int], tasks: list[int]) -> None:
    """Say what there is when nothing that was named is; forgetting all of nothing is fine."""
    if set(ids) & set(tier.quarantined()):
        return
    entries = tier.entries()
    for flag, wanted, there in (
        ("id", ids, entries.ids),
        ("class", labels, entries.labels),
        ("task", tasks, entries.tasks),
    ):
        if wanted:
            named = ", ".join(map(str, wanted))
            raise BadInputError(f"no sample is of {flag} {named}", fix=_there(flag, there))


def _there(flag: str, values: Ids) -> str:
    found = np.unique(values)
    if not len(found):
        return "the storage is empty"
    plural = {"id": "ids", "class": "classes", "task": "tasks"}[flag]
    whole = len(found) == found[-1] - found[0] + 1
    lie = "are" if whole else "lie within"
    return f"{plural} {lie} {found[0]} to {found[-1]}"
