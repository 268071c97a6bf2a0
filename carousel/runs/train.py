"""One training run from its first line to its report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carousel.data import to_benchmark
from carousel.errors import (
    BadInputError,
    CarouselError,
    CheckpointError,
    DivergedError,
    StorageCorruptedError,
    UncleanStorageError,
)
from carousel.memory.checkpoint import newest_checkpoint
from carousel.report.record import Sample
from carousel.runs.anytime import AnytimeTest
from carousel.runs.build import Ingredients, build_strategy, gather_ingredients
from carousel.runs.environment import describe_environment
from carousel.runs.evaluate import Answers, examine, split_sizes
from carousel.runs.folder import MetricsLog
from carousel.runs.interrupt import RunInterrupted, StopRequest, stop_on_signals
from carousel.runs.launch import Launch
from carousel.runs.loggers import flatten, open_loggers
from carousel.runs.observer import Marker, Observer, carousel_sample
from carousel.runs.offload import offloading
from carousel.runs.outcome import problems_of, summarize, write_report
from carousel.runs.progress import RunProgress
from carousel.runs.results import UNTRAINED, Results
from carousel.runs.totals import Totals
from carousel.strategies.checkpoint import Position, RunCheckpoint
from carousel.strategies.registry import strategy_info

__all__ = ["train"]

_log = logging.getLogger("carousel.runs")


def train(launch: Launch, progress: RunProgress) -> dict[str, Any]:
    """Start a run or go on with it, and return its summary.

    Args:
        launch: what `plan_launch` decided; action ``"start"`` or ``"resume"``.
        progress: shows the run.

    Returns:
        The content of ``summary.json``.

    Raises:
        BadInputError: nothing was written.
        RunInterrupted: a signal asked to stop; a checkpoint is written.
        CarouselError: the run failed; ``log.txt`` has the details.
    """
    with _storage_failures_explained(launch):
        return _train(launch, progress)


def _train(launch: Launch, progress: RunProgress) -> dict[str, Any]:
    parts = gather_ingredients(launch.config, launch.storage, discard=launch.fresh)
    if strategy_info(parts.config.strategy).has_memory:
        launch.require_storage()
    launch.clear_the_way()
    if launch.action == "start":
        launch.folder.create(parts.config)
    progress.note(f"run folder {launch.folder.path}")
    with _logging_to(launch.folder.log_file), stop_on_signals() as stop:
        _log.info("%s %s in %s", launch.action, parts.config.strategy, launch.folder.path)
        try:
            with (
                offloading(parts, launch.folder.path / "offload") as complete,
                _Session(complete, launch, progress, stop) as session,
            ):
                return session.run()
        except RunInterrupted:
            _log.info("interrupted")
            raise
        except Exception as error:
            if isinstance(error, DivergedError):
                _name_checkpoint(error, launch)
            _log.exception("the run failed")
            error.add_note(f"details in {launch.folder.log_file}")
            raise


class _Session:
    """One process's share of a run."""

    def __init__(
        self, parts: Ingredients, launch: Launch, progress: RunProgress, stop: StopRequest
    ) -> None:
        self._parts = parts
        self._folder = launch.folder
        self._progress = progress
        self._stop = stop
        self._totals = Totals()
        self._results = Results(len(parts.stream.train))
        self._checkpoint = RunCheckpoint(
            launch.folder.checkpoints, every=parts.config.checkpoint_every, stop=stop
        )
        self._strategy = self._build(launch.storage)
        self._benchmark = to_benchmark(
            parts.stream,
            task_labels=getattr(self._strategy, "task_aware", False),
            augment=parts.config.augment,
        )
        self._metrics = MetricsLog(launch.folder.metrics_file)
        flat = parts.config.model_dump(mode="json")
        self._loggers = open_loggers(parts.config.logger, launch.folder.path, flat)

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()
        self._metrics.close()
        for logger in self._loggers:
            logger.close()
        if self._strategy.memory is not None:
            # An error of the worker was reported by `_finish`, or another one is on its way.
            with suppress(CarouselError):
                self._strategy.memory.close()

    def run(self) -> dict[str, Any]:
        """Learn what is left of the stream, and report."""
        position = self._restore()
        for number in range(position.experiences, len(self._results)):
            self._learn(number, resumed=position.within and number == position.experiences)
        return self._finish()

    def _build(self, storage: Path) -> Any:
        totals = self._totals
        observer = Observer(
            totals,
            progress=self._progress,
            log=self._record,
            experiences=len(self._results),
        )
        before = Marker(
            totals,
            before_training_exp="load",
            before_training_iteration="load",
            after_forward="step",
            after_training_iteration="step",
            after_training_exp="step",
        )
        behind = Marker(
            totals,
            before_training_exp="save",
            before_training_iteration="replay",
            after_forward="swap",
            after_training_iteration="swap",
            after_training_exp="save",
        )
        after_checkpoint = Marker(
            totals, after_training_iteration="save", after_training_exp="save"
        )
        parts = self._parts
        anytime = AnytimeTest(parts.config.eval_every, parts.stream, totals, self._record)
        strategy = build_strategy(
            parts,
            storage,
            run=self._folder.identity(),
            plugins=[behind, anytime, self._checkpoint, after_checkpoint],
        )
        strategy.plugins[:0] = [observer, before]
        return strategy

    def _restore(self) -> Position:
        try:
            position = self._checkpoint.restore(self._strategy, list(self._benchmark.train_stream))
        except BadInputError as error:
            fix = f"{error.fix} with --fresh"
            raise BadInputError(error.problem, fix=fix) from error
        if position is None:
            position = self._begin()
        else:
            self._totals.load(self._checkpoint.extra)
            self._go_on(position)
        self._checkpoint.extra = self._totals.state
        self._folder.write_environment(
            describe_environment(
                seed=self._parts.config.seed,
                device=str(self._parts.device),
                threads=torch.get_num_threads(),
            )
        )
        return position

    def _begin(self) -> Position:
        if self._strategy.memory is not None:
            # Samples of a run that was killed before its first checkpoint, or of another run:
            # they count as met only when they are presented again.
            self._strategy.memory.carousel.tier.hide_from(0)
        self._totals.restart()
        self._test(UNTRAINED)
        self._record({"event": "start", "iteration": 0, "seconds": self._totals.seconds})
        return Position(0)

    def _go_on(self, position: Position) -> None:
        done = position.experiences
        self._results.load(self._folder, done)
        lacking = self._results.lacking(done)
        resume = {
            "event": "resume",
            "iteration": self._totals.iterations,
            "experiences": done - len(lacking),
            "seconds": self._totals.seconds,
        }
        self._record(resume)
        total = len(self._results)
        where = f", epoch {position.epoch + 1}" if position.within else ""
        self._say(f"resuming at experience {min(done + 1, total)}/{total}{where}")
        if lacking == [done - 1] and not position.within:
            self._evaluate(done - 1)
        elif lacking:
            raise CheckpointError(
                f"{self._folder.matrix_file} or {self._folder.task_matrix_file.name} lacks the "
                "rows of experiences that are done; start again with --fresh"
            )

    def _learn(self, number: int, *, resumed: bool) -> None:
        self._totals.restart()
        if not resumed:
            self._totals.begin_experience()
        self._strategy.train(self._benchmark.train_stream[number])
        self._evaluate(number)
        self._stop.obey()

    def _evaluate(self, number: int) -> None:
        self._totals.restart()
        answers = self._test(number)
        counts = split_sizes(self._parts.stream.test)[: number + 1]
        accuracy = float(np.average(answers.class_il[: number + 1], weights=counts))
        times = self._totals.of_experience()
        self._record(
            {
                "event": "experience",
                "iteration": self._totals.iterations,
                "experience": number,
                "seconds": self._totals.seconds,
                "accuracy_seen": accuracy,
                "accuracies": answers.class_il.tolist(),
                "task_il_accuracies": answers.task_il.tolist(),
                "times": times,
                **carousel_sample(self._strategy.memory),
            }
        )
        self._progress.learned(number, len(self._results), accuracy, sum(times.values()))
        _log.info("experience %d learned, accuracy %.4f over those seen", number + 1, accuracy)

    def _test(self, after: int) -> Answers:
        answers = examine(
            self._strategy.model, self._parts.stream, self._parts.device, between=self._stop.obey
        )
        self._totals.lap("evaluate")
        self._results.put(after, answers)
        self._results.save(self._folder)
        return answers

    def _say(self, text: str) -> None:
        self._progress.note(text)
        _log.info(text)

    def _record(self, sample: Sample) -> None:
        self._metrics.write(sample)
        for logger in self._loggers:
            logger.log(str(sample["event"]), flatten(sample), self._totals.iterations)

    def _finish(self) -> dict[str, Any]:
        memory = self._strategy.memory
        problem = _flush(memory)
        stats = None if memory is None else memory.carousel.stats()
        summary = summarize(
            self._parts.config,
            results=self._results,
            counts=split_sizes(self._parts.stream.test),
            stats=carousel_sample(memory),
            totals=self._totals,
            problems=problems_of(stats, problem),
        )
        self._progress.close()
        _save_model(self._strategy.model, self._folder.model_file)
        write_report(self._folder, summary)
        self._folder.write_summary(summary)
        for text in summary["problems"]:
            self._say(f"warning: {text}")
        if problem is not None:
            raise problem
        return summary


def _name_checkpoint(error: DivergedError, launch: Launch) -> None:
    newest = newest_checkpoint(launch.folder.checkpoints)
    error.checkpoint = None if newest is None else str(newest)


def _flush(memory: Any) -> CarouselError | None:
    """Commit what is queued; an error that training survived must not cost its result."""
    if memory is None:
        return None
    try:
        memory.carousel.flush()
    except CarouselError as error:
        _log.exception("the memory reports an error")
        return error
    return None


def _save_model(model: torch.nn.Module, path: Path) -> None:
    temporary = path.with_name(path.name + ".tmp")
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, temporary)
    temporary.replace(path)


@contextmanager
def _storage_failures_explained(launch: Launch) -> Iterator[None]:
    """A damaged storage may show before the log of the run is open."""
    try:
        yield
    except (StorageCorruptedError, UncleanStorageError) as error:
        if launch.folder.started and not getattr(error, "__notes__", None):
            with _logging_to(launch.folder.log_file):
                _log.exception("the storage cannot be used")
            error.add_note(f"details in {launch.folder.log_file}")
        error.args = (f"{error}, or discard the run with --fresh",)
        raise


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("carousel")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
