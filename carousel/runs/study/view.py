"""What a user sees while a study goes on: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from carousel.report.words import percent_text
from carousel.runs.study.watch import Standing

__all__ = ["LiveView", "PlainView", "SilentView", "StudyView", "make_view"]


class StudyView(Protocol):
    """Shows a study; every method returns at once."""

    def begin(self, done: int, total: int) -> None:
        """So many of all runs are done already."""
        ...

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""
        ...

    def ended(self, text: str, done: int) -> None:
        """A run ended, as the text says; so many have by now."""
        ...

    def show(self, running: Mapping[str, Standing]) -> None:
        """How far the runs under way are, by label."""
        ...

    def close(self) -> None:
        """Leave the screen as it should stay; calling it again is fine."""
        ...


def make_view(console: Console, *, quiet: bool) -> StudyView:
    """The view that fits: none, live on a terminal, else plain lines."""
    if quiet:
        return SilentView()
    return LiveView(console) if console.is_terminal else PlainView(console)


class SilentView:
    """Shows nothing."""

    def begin(self, done: int, total: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def ended(self, text: str, done: int) -> None:
        """Nothing."""

    def show(self, running: Mapping[str, Standing]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainView:
    """A line a run, for log files and pipes.

    Args:
        console: where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0

    def begin(self, done: int, total: int) -> None:
        """Say how much there is to do."""
        self._total = total
        self.note(_beginning(done, total))

    def note(self, text: str) -> None:
        """Print the line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def ended(self, text: str, done: int) -> None:
        """Print how the run ended."""
        self.note(f"[{done}/{self._total}] {text}")

    def show(self, running: Mapping[str, Standing]) -> None:
        """Nothing: runs are short enough for their ends."""

    def close(self) -> None:
        """Nothing to tidy up."""


class LiveView:
    """A bar for the study and a line a run under way, with finished runs above them.

    Args:
        console: a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("runs", total=None)
        self._live = Live(self._bar, console=console, transient=True)
        self._started = False

    def begin(self, done: int, total: int) -> None:
        """Show the bar."""
        self.note(_beginning(done, total))
        self._bar.update(self._task, completed=done, total=total)
        self._live.start()
        self._started = True

    def note(self, text: str) -> None:
        """Print the line above the bar."""
        self._console.print(text, markup=False, highlight=False)

    def ended(self, text: str, done: int) -> None:
        """Print how the run ended above the bar."""
        self._bar.update(self._task, completed=done)
        self.note(text)

    def show(self, running: Mapping[str, Standing]) -> None:
        """Redraw the lines below the bar."""
        table = Table.grid(padding=(0, 2))
        for label, standing in running.items():
            table.add_row(label, *_words(standing), style="dim")
        self._live.update(Group(self._bar, table))

    def close(self) -> None:
        """Take the bar away."""
        if self._started:
            self._live.stop()
            self._started = False


def _beginning(done: int, total: int) -> str:
    return f"{total} runs" + (f", {done} of them done already" if done else "")


def _words(standing: Standing) -> tuple[str, str]:
    number = standing.experience + 1
    if standing.experiences and number > standing.experiences:
        return "finishing", f"accuracy {percent_text(standing.accuracy)}"
    of = f"/{standing.experiences}" if standing.experiences else ""
    so_far = "" if standing.accuracy is None else f"accuracy {percent_text(standing.accuracy)}"
    return f"experience {number}{of}", so_far
