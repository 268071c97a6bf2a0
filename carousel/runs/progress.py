"""What a user sees while a run goes on: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from carousel.report.words import bytes_text, count_text, percent_text, seconds_text

__all__ = ["LiveProgress", "PlainProgress", "RunProgress", "Silence", "Snapshot", "make_progress"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a run stands.

    Args:
        experience: number of the one being learned, from 0.
        experiences: in the stream.
        epoch: number of the pass, from 0.
        epochs: passes over each experience.
        step: steps done in this pass.
        steps: steps of a pass.
        loss: mean training loss since the last snapshot.
        accuracy: share of new samples classified right in the last batch, 0..1.
        swaps_done: swaps so far.
        ram_bytes: of the memory.
        storage_bytes: of the storage file.
        seconds: of the run so far.
    """

    experience: int
    experiences: int
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    swaps_done: int
    ram_bytes: int
    storage_bytes: int
    seconds: float

    def learning(self) -> str:
        """Loss and accuracy."""
        return f"loss {self.loss:.3f} · batch accuracy {percent_text(self.accuracy)}"

    def memory(self) -> str:
        """Swaps and bytes; empty for a strategy without a memory."""
        if not self.ram_bytes:
            return ""
        return (
            f"{count_text(self.swaps_done)} swaps · RAM {bytes_text(self.ram_bytes)} · "
            f"storage {bytes_text(self.storage_bytes)}"
        )


class RunProgress(Protocol):
    """Shows a run; every method returns at once."""

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""
        ...

    def update(self, snapshot: Snapshot) -> None:
        """Show where the run stands."""
        ...

    def learned(self, experience: int, experiences: int, accuracy: float, seconds: float) -> None:
        """An experience was learned and all seen so far were tested."""
        ...

    def close(self) -> None:
        """Leave the screen as it should stay; calling it again is fine."""
        ...


def make_progress(console: Console, *, quiet: bool) -> RunProgress:
    """The view that fits: none, live on a terminal, else plain lines."""
    if quiet:
        return Silence()
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


class Silence:
    """Shows nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Nothing."""

    def learned(self, experience: int, experiences: int, accuracy: float, seconds: float) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainProgress:
    """One line now and then, for log files and pipes.

    Args:
        console: where to write.
        every: seconds between lines about the same experience.
    """

    def __init__(self, console: Console, every: float = 5.0) -> None:
        self._console = console
        self._every = every
        self._last = perf_counter()

    def note(self, text: str) -> None:
        """Print the line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, snapshot: Snapshot) -> None:
        """Print a line when the last one is long ago."""
        if perf_counter() - self._last < self._every:
            return
        self._last = perf_counter()
        self.note(
            f"experience {snapshot.experience + 1}/{snapshot.experiences}, "
            f"epoch {snapshot.epoch + 1}/{snapshot.epochs}, "
            f"step {snapshot.step}/{snapshot.steps}: "
            + " · ".join(filter(None, (snapshot.learning(), snapshot.memory())))
        )

    def learned(self, experience: int, experiences: int, accuracy: float, seconds: float) -> None:
        """Print how the experience ended."""
        self._last = perf_counter()
        self.note(_learned_line(experience, experiences, accuracy, seconds))

    def close(self) -> None:
        """Nothing to tidy up."""


class LiveProgress:
    """Bars for experiences and steps that stay in place, with finished experiences above them.

    Args:
        console: a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
        )
        self._stream = self._bars.add_task("experiences", total=None)
        self._steps = self._bars.add_task("", total=None)
        self._status = Text(style="dim")
        self._live = Live(Group(self._bars, self._status), console=console, transient=True)
        self._running = False

    def note(self, text: str) -> None:
        """Print the line above the bars."""
        self._console.print(text, markup=False, highlight=False)

    def update(self, snapshot: Snapshot) -> None:
        """Move the bars."""
        if not self._running:
            self._live.start()
            self._running = True
        total = snapshot.experiences
        self._bars.update(self._stream, total=total, completed=snapshot.experience)
        name = f"epoch {snapshot.epoch + 1}/{snapshot.epochs}"
        self._bars.update(
            self._steps, description=name, total=snapshot.steps, completed=snapshot.step
        )
        spent = f"{seconds_text(snapshot.seconds)} · {snapshot.learning()}"
        self._status.plain = "\n".join(filter(None, (spent, snapshot.memory())))

    def learned(self, experience: int, experiences: int, accuracy: float, seconds: float) -> None:
        """Print how the experience ended above the bars."""
        self._bars.update(self._stream, total=experiences, completed=experience + 1)
        self.note(_learned_line(experience, experiences, accuracy, seconds))

    def close(self) -> None:
        """Take the bars away."""
        if self._running:
            self._live.stop()
            self._running = False


def _learned_line(experience: int, experiences: int, accuracy: float, seconds: float) -> str:
    return (
        f"experience {experience + 1}/{experiences} learned in {seconds_text(seconds)}: "
        f"accuracy {percent_text(accuracy)} over the classes seen"
    )
