"""Checkpoints of a run: model, optimizer, memory and random numbers, so that it can go on.

A checkpoint holds state dicts and plain values, never objects, and loads without running code.
At the end of an experience any strategy of Avalanche can be saved and resumed; in the middle of
one where a `StreamLoader` feeds it, whose place in the epoch is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from avalanche.training.plugins import SupervisedPlugin

from carousel.errors import BadInputError, CarouselError, CheckpointError
from carousel.memory.checkpoint import latest_checkpoint, save_numbered
from carousel.strategies.loader import StreamLoader
from carousel.strategies.memory_loader import MemoryLoader
from carousel.strategies.optimizer_file import drop_unnamed, find_optimizer, keep_optimizer
from carousel.strategies.state import (
    learner_state,
    put_back_learner,
    random_state,
    set_random_state,
)

__all__ = ["Position", "RunCheckpoint", "StopSignal"]

_FORMAT = 2
_RESUMABLE = (StreamLoader, MemoryLoader)
_COUNTERS = (
    "train_iterations",
    "train_exp_counter",
    "train_exp_epochs",
    "train_exp_iterations",
    "train_epoch_iterations",
    "total_iterations",
)
_AHEAD = {
    "iteration": (
        "train_iterations",
        "train_exp_iterations",
        "train_epoch_iterations",
        "total_iterations",
    ),
    "experience": ("train_exp_counter",),
}


@dataclass(frozen=True)
class Position:
    """How far a run has come.

    Attributes:
        experiences: experiences that are trained on to the end.
        epoch: passes over the next experience that are complete.
        iteration: steps of the epoch after these that are done.
    """

    experiences: int
    epoch: int = 0
    iteration: int = 0

    @property
    def within(self) -> bool:
        """Whether the run stands in the middle of an experience."""
        return bool(self.epoch or self.iteration)


class StopSignal(Protocol):
    """Somebody may ask a run to stop; see `carousel.runs.interrupt.StopRequest`."""

    @property
    def asked(self) -> bool:
        """Somebody did."""
        ...

    def obey(self) -> None:
        """Raise what ends the run, if somebody asked."""
        ...


class RunCheckpoint(SupervisedPlugin):
    """Saves a run between experiences and every so many steps; puts it back.

    Give it to the strategy as the last of its plugins. All plugins that have ``state_dict`` and
    ``load_state_dict`` (`CarMPlugin`, `SeenClassesBCE`), the strategy itself if it has them, and
    the schedulers of plugins that have one, are saved with the model and the optimizer. A strategy
    that trains in phases is told the epoch to go on with by ``resume_within(epoch)``. A run that is
    saved in sync mode, and stopped in the training of an experience, goes on bit for bit as if it
    had not been stopped.

    Args:
        folder: where the checkpoints are; made when needed. The last two are kept.
        every: steps between checkpoints within an experience, None for only at its end. Without
            a `StreamLoader` there are none within an experience.
        stop: looked at after every step; a run that is to stop is saved first.

    Attributes:
        extra: the caller's own values, saved and restored as well: plain types and tensors.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from carousel.models import make_model
        >>> from carousel.strategies import make_strategy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = make_model("mlp", (1, 8, 8), 10, seed=0)
        ...     optimizer = torch.optim.SGD(model.parameters(), 0.1)
        ...     checkpoint = RunCheckpoint(folder)
        ...     naive = make_strategy(
        ...         "naive", model=model, optimizer=optimizer, plugins=[checkpoint]
        ...     )
        ...     checkpoint.restore(naive, experiences=[]) is None
        True
    """

    def __init__(
        self, folder: str | Path, *, every: int | None = None, stop: StopSignal | None = None
    ) -> None:
        super().__init__()
        if every is not None and every < 1:
            raise BadInputError(f"every is {every}", fix="give at least 1, or None")
        self.folder = Path(folder)
        self.every = every
        self.extra: dict[str, Any] = {}
        self._resuming: dict[str, Any] | None = None
        self._restored = False
        self._epochs: int | None = None
        self._stop = stop

    def save(self, strategy: Any, position: Position | None = None) -> Path:
        """Write a checkpoint now and return its path.

        Args:
            strategy: between two experiences, unless `position` says otherwise.
            position: where the strategy stands.

        Raises:
            DivergedError: the loss is no number any more; what was saved before stays the last.
        """
        if hasattr(strategy, "check_loss"):
            strategy.check_loss()
        clock = strategy.clock
        if position is None:
            position = Position(clock.train_exp_counter)
        loader = strategy.dataloader
        number = clock.train_iterations
        optimizer = keep_optimizer(strategy.optimizer, self.folder, number)
        state = {
            "format": _FORMAT,
            "position": [position.experiences, position.epoch, position.iteration],
            "learner": learner_state(strategy, optimizer),
            "parts": {name: part.state_dict() for name, part in _parts(strategy, self).items()},
            "clock": {name: getattr(clock, name) for name in _COUNTERS},
            "loader": loader.state_dict() if isinstance(loader, _RESUMABLE) else None,
            "random": random_state(),
            "extra": self.extra,
        }
        path = save_numbered(self.folder, number, state)
        drop_unnamed(self.folder, optimizer)
        return path

    def restore(self, strategy: Any, experiences: Sequence[Any]) -> Position | None:
        """Put the newest intact checkpoint into a strategy that has not been trained yet.

        Args:
            strategy: made as it was in the run that was saved.
            experiences: the run's training stream from its start, which lets growing models
                grow to their size again.

        Returns:
            Where to go on: ``strategy.train(experience)`` for each of
            ``experiences[position.experiences:]``. None if there is no checkpoint.

        Raises:
            CheckpointError: the checkpoints are damaged, or of another model or strategy.
            BadInputError: the storage is not the one of the run.
        """
        newest = latest_checkpoint(self.folder)
        if newest is None:
            return None
        path, state = newest
        if state.get("format") != _FORMAT:
            raise CheckpointError(f"{path} has format {state.get('format')}, not {_FORMAT}")
        position = Position(*state["position"])
        try:
            self._put_back(strategy, state, experiences)
        except CarouselError:
            raise
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} does not fit this run: {error}") from error
        if hasattr(strategy, "recall"):
            for experience in experiences[: position.experiences]:
                strategy.recall(experience)
        self._resuming = state if position.within else None
        self._restored = True
        return position

    def before_training(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Save again: evaluation since the last experience may have drawn random numbers."""
        if strategy.clock.train_exp_counter and not self._restored:
            self.save(strategy)
        self._restored = False

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Go on in the middle of the experience that was interrupted."""
        if self._resuming is None:
            return
        if hasattr(strategy, "resume_within"):
            strategy.resume_within(self._resuming["position"][1])
        if not isinstance(strategy.dataloader, _RESUMABLE):
            raise CheckpointError(
                "the checkpoint stands within an experience, and the loader is no StreamLoader now"
            )
        strategy.dataloader.load_state_dict(self._resuming["loader"])
        # Avalanche reads the number of epochs once, before the first of them begins
        self._epochs = strategy.train_epochs
        strategy.train_epochs -= self._resuming["position"][1]

    def before_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Random numbers go on where they were: nothing is drawn from here to the next batch."""
        if self._epochs is not None:
            strategy.train_epochs, self._epochs = self._epochs, None
        if self._resuming is not None:
            _set_counters(strategy.clock, self._resuming["clock"])
            set_random_state(self._resuming["random"])

    def before_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        """The clock has set its counters back when the epoch began."""
        if self._resuming is not None:
            _set_counters(strategy.clock, self._resuming["clock"])
            self._resuming = None

    def after_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Save every so many steps."""
        clock = strategy.clock
        asked = self._stop is not None and self._stop.asked
        due = self.every is not None and (clock.train_iterations + 1) % self.every == 0
        if (due or asked) and isinstance(strategy.dataloader, _RESUMABLE):
            with _ahead(clock, "iteration"):
                within = (clock.train_exp_epochs, clock.train_epoch_iterations)
                self.save(strategy, Position(clock.train_exp_counter, *within))
        if self._stop is not None:
            self._stop.obey()

    def after_training_epoch(self, *_: Any, **__: Any) -> None:
        """An epoch that was interrupted behind its last step has no step left."""
        self._resuming = None

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Save at the end of the experience."""
        with _ahead(strategy.clock, "experience"):
            self.save(strategy)
        if self._stop is not None:
            self._stop.obey()

    def _put_back(self, strategy: Any, state: dict[str, Any], experiences: Sequence[Any]) -> None:
        learner = state["learner"]
        optimizer = find_optimizer(learner["optimizer"], self.folder)
        put_back_learner(strategy, {**learner, "optimizer": optimizer}, experiences)
        parts = _parts(strategy, self)
        if parts.keys() != state["parts"].keys():
            raise CheckpointError(
                f"the checkpoint holds {sorted(state['parts'])} and the strategy {sorted(parts)}"
            )
        for name, part in parts.items():
            part.load_state_dict(state["parts"][name])
        _set_counters(strategy.clock, state["clock"])
        set_random_state(state["random"])
        self.extra = state["extra"]


def _parts(strategy: Any, own: RunCheckpoint) -> dict[str, Any]:
    """The method and the plugins with a state, and schedulers of plugins that have one, by name."""
    parts: dict[str, Any] = {}
    if hasattr(strategy, "state_dict") and hasattr(strategy, "load_state_dict"):
        parts["method"] = strategy
    for plugin in strategy.plugins:
        for part in (plugin, getattr(plugin, "scheduler", None)):
            if part is not own and hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
                name = type(part).__name__
                number = sum(other.split()[0] == name for other in parts)
                parts[f"{name} {number}"] = part
    return parts


def _set_counters(clock: Any, counters: dict[str, int]) -> None:
    for name in _COUNTERS:
        setattr(clock, name, counters[name])


@contextmanager
def _ahead(clock: Any, event: str) -> Iterator[None]:
    """The clock as it will be after this event: it is the last plugin to hear of it."""
    for name in _AHEAD[event]:
        setattr(clock, name, getattr(clock, name) + 1)
    try:
        yield
    finally:
        for name in _AHEAD[event]:
            setattr(clock, name, getattr(clock, name) - 1)
