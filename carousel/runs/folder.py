"""The folder of a run: which files there are, and how each survives a kill at any moment."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from carousel.errors import BadInputError
from carousel.report.metrics import Matrix
from carousel.report.record import PLOT_NAMES, RunRecord, Sample, current_history
from carousel.runs.config import TrainConfig, dump_config, read_config_file, resolve_config

__all__ = ["MetricsLog", "RunFolder", "default_run_path", "write_atomically"]

RUNS = Path("runs")


class RunFolder:
    """Names, reads and writes the files of one run.

    Whole files are replaced atomically; ``metrics.jsonl`` only grows. Nothing is created before
    `create`.

    Args:
        path: the folder itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.matrix_file = path / "accuracy_matrix.csv"
        self.task_matrix_file = path / "accuracy_matrix_task_il.csv"
        self.summary_file = path / "summary.json"
        self.environment_file = path / "environment.json"
        self.log_file = path / "log.txt"
        self.model_file = path / "model.pt"
        self.report_file = path / "report.html"
        self.checkpoints = path / "checkpoints"
        self.storage = path / "storage"

    @property
    def started(self) -> bool:
        """A run has written its configuration here."""
        return self.config_file.is_file()

    @property
    def finished(self) -> bool:
        """The run in here has ended and left its summary."""
        return self.started and self.summary_file.is_file()

    @property
    def empty(self) -> bool:
        """Nothing is in the way of a new run."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def create(self, config: TrainConfig) -> None:
        """Make the folder and save the configuration.

        Raises:
            BadInputError: the folder cannot be made.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config_file, dump_config(config))
        except OSError as error:
            reason = (error.strerror or "error").lower()
            raise BadInputError(
                f"run folder {self.path} cannot be made ({reason})", fix="give another --out"
            ) from None

    def identity(self) -> str:
        """What a storage calls this run: stays the same when the folder is moved."""
        file = self.checkpoints / "run.txt"
        if not file.is_file():
            write_atomically(file, uuid.uuid4().hex)
        return file.read_text("utf-8")

    def clear(self) -> None:
        """Remove the files that a run writes, and nothing else; storage is left alone."""
        for name in PLOT_NAMES:
            (self.path / f"{name}.png").unlink(missing_ok=True)
        for file in (
            self.summary_file,
            self.metrics_file,
            self.matrix_file,
            self.task_matrix_file,
            self.environment_file,
            self.log_file,
            self.model_file,
            self.report_file,
        ):
            file.unlink(missing_ok=True)
        for name in ("checkpoints", "csv", "tensorboard", "wandb"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        self.config_file.unlink(missing_ok=True)

    def read_config(self) -> TrainConfig:
        """The configuration that the run was started with."""
        return resolve_config(file=read_config_file(self.config_file))

    def write_matrix(self, matrix: Matrix, untrained: Matrix, file: Path | None = None) -> None:
        """Save the rows that are complete; row 0 is the untrained model.

        Args:
            matrix: (T, T) accuracies, NaN in rows to come.
            untrained: (T,) accuracies before training.
            file: by default `matrix_file`.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["after_experience", *(f"on_{i + 1}" for i in range(len(matrix)))])
        for number, row in enumerate([untrained, *matrix]):
            if np.isfinite(row).all():
                writer.writerow([number, *(repr(float(value)) for value in row)])
        write_atomically(file or self.matrix_file, text.getvalue())

    def read_matrix(self, file: Path | None = None) -> tuple[Matrix, Matrix] | None:
        """(T, T) matrix with NaN in the rows to come, and the (T,) untrained accuracies."""
        file = file or self.matrix_file
        if not file.is_file():
            return None
        lines = list(csv.reader(file.read_text("utf-8").splitlines()))
        total = len(lines[0]) - 1
        rows = np.full((total + 1, total), np.nan)
        for line in lines[1:]:
            rows[int(line[0])] = [float(value) for value in line[1:]]
        return rows[1:], rows[0]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Save ``summary.json``; the run counts as finished from here on."""
        write_atomically(self.summary_file, json.dumps(summary, indent=2) + "\n")

    def read_summary(self) -> dict[str, Any]:
        """The summary, empty while the run is not finished."""
        return read_json(self.summary_file)

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Save ``environment.json``."""
        write_atomically(self.environment_file, json.dumps(environment, indent=2) + "\n")

    def record(self) -> RunRecord:
        """What the folder tells of its run, for reports.

        Raises:
            BadInputError: there is no run in this folder.
        """
        if not self.started:
            raise BadInputError(
                f"{self.path} is not a run folder",
                fix="give a folder that `carousel train` or `carousel compare` made",
            )
        config = read_config_file(self.config_file)
        read, told = self.read_matrix(), self.read_matrix(self.task_matrix_file)
        matrix = np.full((config.get("experiences") or 1,) * 2, np.nan) if read is None else read[0]
        return RunRecord(
            name=self.path.resolve().name,
            config=config,
            matrix=matrix,
            task_il=None if told is None else told[0],
            samples=current_history(read_lines(self.metrics_file)),
            summary=self.read_summary(),
            environment=read_json(self.environment_file),
        )


class MetricsLog:
    """``metrics.jsonl``: one JSON object a line, each handed to the system at once.

    Opening it again after a kill cuts off a line that was not written to its end.

    Args:
        path: the file; made when it does not exist.
    """

    def __init__(self, path: Path) -> None:
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, sample: Sample) -> None:
        """Append one line."""
        self._file.write(json.dumps(sample) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; calling it again is fine."""
        self._file.close()


def default_run_path(strategy: str, benchmark: str, now: datetime | None = None) -> Path:
    """``runs/<time>-<strategy>-<benchmark>``, with a number behind it when that is taken."""
    stamp = (now or datetime.now()).strftime("%Y-%m-%d-%H%M%S")
    base = RUNS / f"{stamp}-{run_suffix(strategy, benchmark)}"
    path, number = base, 2
    while path.exists():
        path = base.with_name(f"{base.name}-{number}")
        number += 1
    return path


def run_suffix(strategy: str, benchmark: str) -> str:
    """The end of a default run folder's name, safe for any file system."""
    scheme, _, path = benchmark.partition(":")
    name = f"{scheme}-{Path(path).resolve().stem}" if path else scheme
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return f"{strategy}-{safe.strip('-')}"


def read_lines(path: Path) -> list[Sample]:
    """The whole lines of a ``metrics.jsonl``; one that a kill cut short is skipped."""
    if not path.is_file():
        return []
    samples: list[Sample] = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            samples.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return samples


def write_atomically(path: Path, content: str) -> None:
    """Replace a text file so that a kill or a power cut leaves the old or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, empty when there is none."""
    if not path.is_file():
        return {}
    content = json.loads(path.read_text("utf-8"))
    return content if isinstance(content, dict) else {}


def _cut_torn_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
