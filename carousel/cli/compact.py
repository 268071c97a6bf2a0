"""``carousel compact``: give freed bytes back to the disk."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console

from carousel.cli.flags import JsonFlag
from carousel.cli.store import StorePath, print_json, progress_of
from carousel.report.words import bytes_text

__all__ = ["compact"]


def compact(path: StorePath, as_json: JsonFlag = False) -> None:
    """Rewrite a storage with only what it holds: nothing of a forgotten sample remains.

    No one may have the storage open, and the disk must have room for a second copy.
    """
    from carousel.storage.maintenance import compact as rewrite

    with progress_of("compacting", show=not as_json) as progress:
        report = rewrite(path, progress)
    if as_json:
        print_json(asdict(report))
        return
    saved = report.before_bytes - report.after_bytes
    Console(highlight=False).print(
        f"{bytes_text(report.before_bytes)} became {bytes_text(report.after_bytes)}: "
        f"{bytes_text(max(saved, 0))} given back"
    )
