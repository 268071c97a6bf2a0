"""The folder of a study: its settings, its runs, and the report on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import yaml

from carousel.errors import BadInputError
from carousel.report.study.results import RunResult, StudyResults
from carousel.report.study.write import RESULTS, write_study
from carousel.runs.environment import describe_machine
from carousel.runs.folder import RunFolder, default_run_path, read_json, write_atomically
from carousel.runs.study.grid import Cell, make_grid
from carousel.runs.study.settings import Study, dump_study, read_study

__all__ = ["StudyFolder", "default_study_path"]


class StudyFolder:
    """Names, reads and writes the files of a study; nothing is created before `create`.

    Args:
        path: the folder itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study_file = path / "study.yaml"
        self.environment_file = path / "environment.json"
        self.report_file = path / "report.html"
        self._names = _names_by_digest(path / "runs")

    @property
    def started(self) -> bool:
        """A study has written its settings here."""
        return self.study_file.is_file()

    def run(self, cell: Cell) -> RunFolder:
        """The folder of a run; that of a run with the same settings, if there was one."""
        name = self._names.setdefault(cell.digest, cell.name)
        return RunFolder((self.path / "runs" / name).absolute())

    def log(self, cell: Cell) -> Path:
        """What the processes of a run said, beside its folder so that this stays a run's own."""
        return (self.path / "logs" / f"{self.run(cell).path.name}.txt").absolute()

    def check_free(self) -> None:
        """Refuse a folder that holds something else.

        Raises:
            BadInputError: it does, or is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise BadInputError(f"--out {self.path} is a file", fix="give a folder as --out")
        if self.path.is_dir() and any(self.path.iterdir()) and not self.started:
            raise BadInputError(
                f"--out {self.path} holds other files",
                fix="give a folder of a study, or one that is empty or not there",
            )

    def create(self, settings: str) -> None:
        """Make the folder and save the settings of the study.

        Raises:
            BadInputError: the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.study_file, settings)
        except OSError as error:
            reason = (error.strerror or "error").lower()
            raise BadInputError(
                f"folder {self.path} cannot be made ({reason})", fix="give another --out"
            ) from None

    def note_environment(self) -> None:
        """Save versions, command and machine; those of the last start that trained."""
        text = json.dumps(describe_machine(), indent=2) + "\n"
        write_atomically(self.environment_file, text)

    def report(
        self, study: Study, cells: Sequence[Cell], errors: Mapping[str, str]
    ) -> StudyResults:
        """Write tables, pictures and page of what is done so far.

        Args:
            study: what is compared.
            cells: its runs.
            errors: why runs failed, by their names.
        """
        results = StudyResults(
            title=_title(cells),
            runs=[self._result(cell, errors.get(self.run(cell).path.name, "")) for cell in cells],
            settings=yaml.safe_load(dump_study(study)),
            environment=read_json(self.environment_file),
        )
        write_study(results, self.path)
        return results

    def report_again(self) -> StudyResults:
        """The report from what the folder holds.

        Raises:
            BadInputError: there is no study in this folder.
        """
        if not self.started:
            raise BadInputError(
                f"{self.path} holds no study", fix="give a folder that `carousel compare` made"
            )
        study = read_study(self.study_file)
        earlier = read_json(self.path / RESULTS).get("runs", [])
        errors = {run["name"]: run["error"] for run in earlier if run.get("error")}
        return self.report(study, make_grid(study), errors)

    def _result(self, cell: Cell, error: str) -> RunResult:
        run = self.run(cell)
        summary = run.read_summary() if run.finished else {}
        failed = bool(error) and not summary
        log = run.log_file if run.log_file.is_file() else self.log(cell)
        return RunResult(
            name=run.path.name,
            strategy=cell.strategy,
            swap=cell.swap,
            seed=cell.seed,
            point=cell.point,
            state="done" if summary else "failed" if failed else "missing",
            summary=summary,
            error=error if failed else "",
            log=str(log) if failed else "",
        )


def _names_by_digest(runs: Path) -> dict[str, str]:
    names = [path.name for path in runs.iterdir()] if runs.is_dir() else []
    return {name.rpartition("-")[2]: name for name in names}


def default_study_path(benchmark: str, now: datetime | None = None) -> Path:
    """``runs/<time>-compare-<benchmark>``."""
    return default_run_path("compare", benchmark, now)


def _title(cells: Sequence[Cell]) -> str:
    benchmarks = dict.fromkeys(cell.config.benchmark for cell in cells)
    return f"Comparison on {', '.join(benchmarks)}"
