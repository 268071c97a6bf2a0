"""Avalanche's training loop without the calls that do nothing.

Avalanche asks every plugin for every event of every iteration, and most of these calls end in an
empty method. `LeanTemplate` finds out once an epoch who really answers. The order of events and
of plugins is Avalanche's; plugins that are added while an epoch runs are heard in the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from avalanche.models.utils import is_multi_task_module
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from carousel.strategies.divergence import LossWatch
from carousel.strategies.facts import StreamFacts, facts_of, whole_of
from carousel.strategies.loader import StreamLoader

__all__ = ["LeanTemplate"]

Callback: TypeAlias = Callable[..., Any]

_EVENTS = (
    "before_training_iteration",
    "before_forward",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_update",
    "after_update",
    "after_training_iteration",
)
_EMPTY = ("BasePlugin", "BaseSGDPlugin", "SupervisedPlugin", "PluginMetric")
"""Classes of Avalanche whose callbacks do nothing."""


class LeanTemplate(SupervisedTemplate):
    """`SupervisedTemplate` of Avalanche with the same events and less overhead.

    ``loss`` starts an iteration as a zero, as in Avalanche, if a plugin could see it before the
    criterion has been called; else it is the criterion's value from the start. A plugin whose
    attribute ``leaves_loss`` is true says that it does not look.

    A loss that is NaN or infinite ends the training with a `DivergedError`: on the CPU before the
    step is taken, on other devices within 50 steps, and in any case before a checkpoint is saved.
    """

    _watch: LossWatch | None = None
    _checked: Any = None

    def check_stream(self, facts: StreamFacts) -> None:
        """Refuse a stream that the strategy cannot serve; by default it takes any.

        Called before each experience, and by `carousel train` before anything is written, which
        knows the whole stream.

        Raises:
            BadInputError: names what is missing and the fix.
        """

    def sample_fields(self, facts: StreamFacts) -> dict[str, Tensor]:
        """What a stored sample holds, in the order in which it is saved: (0, *shape) tensors.

        `carousel train` compares it with what a storage holds before anything is written. A
        strategy that stores more than ``x`` adds its fields here.
        """
        return {"x": torch.empty(0, *facts.input_shape, dtype=facts.dtype)}

    def check_loss(self) -> None:
        """Raise `DivergedError` now if a loss that was not looked at yet is NaN or infinite."""
        if self._watch is not None:
            self._watch.check()

    def _before_training_exp(self, **kwargs: Any) -> None:
        self._check_experience()
        super()._before_training_exp(**kwargs)

    def _check_experience(self) -> None:
        """Once for all pieces of an online experience: there may be thousands."""
        whole = whole_of(self.experience)
        if type(self).check_stream is LeanTemplate.check_stream or whole is self._checked:
            return
        facts, memory = facts_of(self.experience), getattr(self, "memory", None)
        if memory is not None:
            slots = memory.carousel.slots_for(self.sample_fields(facts))
            facts = replace(facts, slots=slots)
        self.check_stream(facts)
        self._checked = whole

    def training_epoch(self, **kwargs: Any) -> None:  # noqa: PLR0912 - one loop an event
        """One pass over the loader; see `SGDUpdate.training_epoch` of Avalanche."""
        events = (self._answering(event) for event in _EVENTS)
        before_step, before_forward, after_forward, before_backward, after_backward, *late = events
        before_update, after_update, after_step = late
        adds_up = not all(map(_leaves_loss, (*before_forward, *after_forward, *before_backward)))
        forward, criterion = self._forward_of_experience(), self._criterion_of_class()
        self._watch = watch = LossWatch(self.device, self.clock.train_exp_counter)
        moves = self.device.type != "cpu" or not isinstance(self.dataloader, StreamLoader)
        for mbatch in self.dataloader:
            self.mbatch = mbatch
            if self._stop_training:
                break
            if moves:
                self._unpack_minibatch()
            for call in before_step:
                call(self, **kwargs)
            self.optimizer.zero_grad()
            if adds_up:
                self.loss = self._make_empty_loss()
            for call in before_forward:
                call(self, **kwargs)
            self.mb_output = forward()
            for call in after_forward:
                call(self, **kwargs)
            if adds_up:
                self.loss += criterion()
            else:
                self.loss = criterion()
            for call in before_backward:
                call(self, **kwargs)
            watch.see(self.loss, self.clock.train_iterations + 1)
            self.backward()
            for call in after_backward:
                call(self, **kwargs)
            for call in before_update:
                call(self, **kwargs)
            self.optimizer_step()
            for call in after_update:
                call(self, **kwargs)
            for call in after_step:
                call(self, **kwargs)
        watch.check()

    def _forward_of_experience(self) -> Callback:
        """`forward`, which asks the experience every time whether it has task labels."""
        by_task = hasattr(self.experience, "task_labels") and is_multi_task_module(self.model)
        if by_task or type(self).forward is not SupervisedTemplate.forward:
            return self.forward  # type: ignore[no-any-return]
        return lambda: self.model(self.mbatch[0])

    def _criterion_of_class(self) -> Callback:
        if type(self).criterion is not SupervisedTemplate.criterion:
            return self.criterion  # type: ignore[no-any-return]
        return lambda: self._criterion(self.mb_output, self.mbatch[1])

    def _answering(self, event: str) -> list[Callback]:
        return [getattr(plugin, event) for plugin in self.plugins if _answers(plugin, event)]


def _leaves_loss(callback: Callback) -> bool:
    return getattr(getattr(callback, "__self__", None), "leaves_loss", False)


def _answers(plugin: Any, event: str) -> bool:
    """Whether a call would do something; an evaluator answers through metrics and loggers."""
    if type(plugin) is EvaluationPlugin:
        return any(_answers(part, event) for part in (*plugin.metrics, *plugin.loggers))
    method = getattr(plugin, event, None)
    if method is None:
        return False
    owner = getattr(method, "__qualname__", "").rpartition(".")[0]
    return not (owner in _EMPTY and method.__module__.startswith("avalanche."))
