"""A study from its first line to its report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carousel.errors import BadInputError
from carousel.report.study.results import StudyResults
from carousel.report.words import percent_text, seconds_text
from carousel.runs.interrupt import StopRequest, stop_on_signals
from carousel.runs.precheck import check_settings
from carousel.runs.study.folder import StudyFolder
from carousel.runs.study.grid import Cell, make_grid
from carousel.runs.study.pool import LocalPool, Pool, RayPool, check_ray, usable_processors
from carousel.runs.study.settings import Study, dump_study
from carousel.runs.study.view import StudyView
from carousel.runs.study.watch import Follower
from carousel.runs.study.worker import Job, Verdict

__all__ = ["Plan", "compare", "plan_compare"]

_POLL = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """A study that was found fit to start.

    Args:
        study: what is compared.
        folder: of the study.
        cells: all of its runs.
        jobs: runs at a time, None for as many as there are processors.
        ray: address of a cluster, ``"local"``, or None for processes of this machine.
        keep_storage: whether finished runs keep their storage and checkpoints.
        fresh: train all runs anew.
    """

    study: Study
    folder: StudyFolder
    cells: Sequence[Cell]
    jobs: int | None = None
    ray: str | None = None
    keep_storage: bool = False
    fresh: bool = False

    @property
    def missing(self) -> list[Cell]:
        """Runs to make, or to go on with."""
        if self.fresh:
            return list(self.cells)
        return [cell for cell in self.cells if not self.folder.run(cell).finished]


def plan_compare(
    study: Study,
    out: Path,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    keep_storage: bool = False,
    fresh: bool = False,
) -> Plan:
    """Check everything that can be checked before torch is imported; nothing is written.

    Args:
        study: what is compared.
        out: folder of the study.
        jobs: see `Plan`, as for the rest.

    Raises:
        BadInputError: the folder is not free, or a run could not be started.
        DatasetMissingError: the data are not on this machine.
    """
    if jobs is not None and jobs < 1:
        raise BadInputError(f"jobs is {jobs}", fix="give 1 or more")
    if ray is not None:
        check_ray()
    folder = StudyFolder(out)
    folder.check_free()
    cells = make_grid(study)
    plan = Plan(study, folder, cells, jobs, ray, keep_storage, fresh)
    for cell in cells:
        run = folder.run(cell)
        with _named(cell):
            check_settings(cell.config, run.storage)
        if run.started and not fresh:
            cell.check_same(run)
    return plan


def compare(plan: Plan, view: StudyView) -> StudyResults:
    """Make the runs that are missing and sum up.

    Args:
        plan: what `plan_compare` found fit.
        view: shows the study.

    Raises:
        BadInputError: a run could not be started; none was.
        RunInterrupted: a signal asked to stop; the runs under way wrote checkpoints, and the
            report holds what is done.
    """
    with stop_on_signals() as stop:
        missing = plan.missing
        if missing:
            view.note("checking the settings of all methods ...")
            _rehearse(plan, missing)
        pool = _open_pool(plan, len(missing)) if missing else None
        plan.folder.create(dump_study(plan.study))
        if missing:
            plan.folder.note_environment()
        errors: dict[str, str] = {}
        try:
            if pool is not None:
                _Round(plan, pool, view, stop, errors).run(missing)
        finally:
            view.close()
            if pool is not None:
                pool.close()
            if not plan.keep_storage:
                for cell in plan.cells:
                    _discard_storage(plan, cell)
            results = plan.folder.report(plan.study, plan.cells, errors)
        return results


class _Round:
    """One process's share of a study."""

    def __init__(
        self, plan: Plan, pool: Pool, view: StudyView, stop: StopRequest, errors: dict[str, str]
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._view = view
        self._stop = stop
        self._errors = errors
        self._done = len(plan.cells)
        self._running: dict[Any, tuple[Cell, Follower]] = {}

    def run(self, missing: Sequence[Cell]) -> None:
        """Make all of them, some at a time."""
        waiting = list(reversed(missing))
        self._done -= len(missing)
        self._view.begin(self._done, len(self._plan.cells))
        try:
            while waiting or self._running:
                self._stop.obey()
                while waiting and len(self._running) < self._pool.slots:
                    self._start(waiting.pop())
                for ticket, verdict in self._pool.ready(self._running, _POLL).items():
                    self._end(self._running.pop(ticket)[0], verdict)
                self._view.show({c.label: f.look() for c, f in self._running.values()})
        except BaseException:
            self._view.note("stopping: runs under way write their checkpoints")
            self._pool.stop()
            raise

    def _start(self, cell: Cell) -> None:
        folder = self._plan.folder
        job = Job(
            settings=cell.settings,
            out=str(folder.run(cell).path),
            log=str(folder.log(cell)),
            cwd=str(Path.cwd()),
            fresh=self._plan.fresh,
        )
        self._running[self._pool.submit(job)] = cell, Follower(folder.run(cell))

    def _end(self, cell: Cell, verdict: Verdict) -> None:
        self._done += 1
        run = self._plan.folder.run(cell)
        if verdict.state == "done" and run.finished:
            summary = run.read_summary()
            accuracy, seconds = summary["final_accuracy"], summary["seconds"]
            text = f"final accuracy {percent_text(accuracy)} in {seconds_text(seconds)}"
            if not self._plan.keep_storage:
                _discard_storage(self._plan, cell)
        else:
            text = f"failed: {verdict.error or verdict.state}"
            self._errors[run.path.name] = verdict.error or verdict.state
        self._view.ended(f"{cell.label}: {text}", self._done)


def _open_pool(plan: Plan, missing: int) -> Pool:
    if plan.ray is None:
        return LocalPool(min(plan.jobs or usable_processors(), missing))
    gpu = any(cell.config.device.startswith("cuda") for cell in plan.cells)
    return RayPool(plan.ray, plan.jobs, gpu=gpu)


def _rehearse(plan: Plan, missing: Sequence[Cell]) -> None:
    """Build the strategy of one seed of each: it refuses what it cannot use."""
    kinds = {(cell.strategy, cell.swap, cell.point): cell for cell in reversed(missing)}
    for cell in reversed(kinds.values()):
        from carousel.runs.build import gather_ingredients

        config = cell.config
        if plan.ray is not None:  # the devices are elsewhere
            config = config.model_copy(update={"device": "cpu"})
        with _named(cell):
            gather_ingredients(config, plan.folder.run(cell).storage, discard=True)


@contextmanager
def _named(cell: Cell) -> Iterator[None]:
    """Let an error say which method it is about."""
    try:
        yield
    except BadInputError as error:
        error.problem = f"{cell.strategy}: {error.problem}"
        raise


def _discard_storage(plan: Plan, cell: Cell) -> None:
    """Free the disk: the storage and the checkpoints of a run that is done."""
    run = plan.folder.run(cell)
    if run.finished:
        shutil.rmtree(run.storage, ignore_errors=True)
        for file in run.checkpoints.glob("*.pt"):
            with suppress(OSError):
                file.unlink()
