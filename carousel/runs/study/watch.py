"""Where the runs of a study stand, told by the files they write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from carousel.runs.folder import RunFolder

__all__ = ["Follower", "Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is.

    Args:
        experience: number of the one being learned, from 0.
        experiences: in the stream, 0 while that is not known.
        accuracy: over the classes seen, None before an experience is learned.
    """

    experience: int = 0
    experiences: int = 0
    accuracy: float | None = None


class Follower:
    """Reads on in the metrics of a run, each line once.

    Args:
        folder: of the run; it need not exist yet.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._offset = 0
        self._standing = Standing()

    def look(self) -> Standing:
        """How far the run is now."""
        for line in self._new_lines():
            self._standing = _after(self._standing, line)
        return self._standing

    def _new_lines(self) -> list[dict[str, Any]]:
        try:
            with self._folder.metrics_file.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = []
        for line in whole.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:  # torn by a kill, and followed by a resumed run's
                continue
        return lines


def _after(before: Standing, line: dict[str, Any]) -> Standing:
    if line.get("event") == "experience":
        return Standing(
            int(line["experience"]) + 1, len(line["accuracies"]), float(line["accuracy_seen"])
        )
    if line.get("event") == "progress":
        return Standing(int(line["experience"]), before.experiences, before.accuracy)
    return before
