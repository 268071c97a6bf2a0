"""Where numbers go besides the run folder's own files: TensorBoard, Weights & Biases, CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TextIO

from carousel.errors import BadInputError
from carousel.report.record import Sample

__all__ = ["RunLogger", "check_loggers", "flatten", "open_loggers"]

_INSTALL = {"tensorboard": "pip install tensorboard", "wandb": "pip install wandb"}


class RunLogger(Protocol):
    """Takes the numbers of a run as they come."""

    def log(self, event: str, values: Mapping[str, float], step: int) -> None:
        """Numbers of a kind (``"progress"``, ``"experience"``) at an iteration."""
        ...

    def close(self) -> None:
        """Write what is pending."""
        ...


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers whose package is missing, before a run begins.

    Raises:
        BadInputError: names the command that installs it.
    """
    for name in names:
        if name in _INSTALL and find_spec(name) is None:
            raise BadInputError(f"logger {name} is not installed", fix=_INSTALL[name])


def open_loggers(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[RunLogger]:
    """The loggers of a run; each goes on where it was when the run is resumed.

    Args:
        names: ``tensorboard``, ``wandb``, ``csv``.
        folder: of the run; all write below it.
        config: settings to show beside the curves.
    """
    make: dict[str, Callable[[], RunLogger]] = {
        "csv": lambda: CsvLogger(folder / "csv"),
        "tensorboard": lambda: TensorBoardLogger(folder / "tensorboard"),
        "wandb": lambda: WandbLogger(folder, config),
    }
    return [make[name]() for name in dict.fromkeys(names)]


def flatten(sample: Sample) -> dict[str, float]:
    """The numbers in a line of ``metrics.jsonl``, with ``/`` between levels.

    Example:
        >>> flatten({"event": "progress", "loss": 0.5, "swaps": {"done": 3}})
        {'loss': 0.5, 'swaps/done': 3}
    """
    flat: dict[str, float] = {}
    for key, value in sample.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{name}": number for name, number in flatten(value).items()}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            flat[key] = value
    return flat


class CsvLogger:
    """Plain tables, one an event and one row a sample; the first row decides the columns.

    Args:
        folder: of the tables; rows are appended to those that exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: dict[str, tuple[TextIO, list[str]]] = {}
        folder.mkdir(exist_ok=True)

    def log(self, event: str, values: Mapping[str, float], step: int) -> None:
        """Append a row to the table of the event."""
        row = {"step": step, **values}
        if event not in self._tables:
            self._tables[event] = self._open(event, list(row))
        file, columns = self._tables[event]
        csv.writer(file, lineterminator="\n").writerow([row.get(name, "") for name in columns])
        file.flush()

    def close(self) -> None:
        """Close the tables."""
        for file, _ in self._tables.values():
            file.close()

    def _open(self, event: str, columns: list[str]) -> tuple[TextIO, list[str]]:
        path = self._folder / f"{event}.csv"
        known = _header(path)
        file = path.open("a", encoding="utf-8", newline="")
        if known is None:
            csv.writer(file, lineterminator="\n").writerow(columns)
        return file, known or columns


class TensorBoardLogger:
    """Event files below the run folder, through torch.

    Args:
        folder: of the event files.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def log(self, event: str, values: Mapping[str, float], step: int) -> None:
        """One scalar a number."""
        for name, value in values.items():
            self._writer.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        """Write what is pending."""
        self._writer.close()


class WandbLogger:
    """Weights & Biases; falls back to its offline mode where there is no key or no network.

    Args:
        folder: of the run; its name is the run's name.
        config: settings to show beside the curves.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        name = folder.resolve().name
        start: dict[str, Any] = {
            "project": "carousel",
            "name": name,
            "id": name,
            "resume": "allow",
            "dir": str(folder),
            "config": dict(config),
        }
        try:
            self._run: Any = wandb.init(**start)
        except Exception:
            self._run = wandb.init(**start, mode="offline")

    def log(self, event: str, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of an iteration."""
        self._run.log({f"{event}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """End the run there."""
        self._run.finish()


def _header(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), None)
