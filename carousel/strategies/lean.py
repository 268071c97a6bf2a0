"""Avalanche's training loop without the calls that do nothing.

Avalanche asks every plugin for every event of every iteration, and most of these calls end in an
empty method. `LeanTemplate` finds out once an epoch who really answers. The order of events and
of plugins is Avalanche's; plugins that are added while an epoch runs are heard in the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.templates import SupervisedTemplate

__all__ = ["LeanTemplate"]

Callback: TypeAlias = Callable[..., Any]

_EMPTY = ("BasePlugin", "BaseSGDPlugin", "SupervisedPlugin", "PluginMetric")
"""Classes of Avalanche whose callbacks do nothing."""


class LeanTemplate(SupervisedTemplate):
    """`SupervisedTemplate` of Avalanche with the same events and less overhead."""

    def training_epoch(self, **kwargs: Any) -> None:
        """One pass over the loader; see `SGDUpdate.training_epoch` of Avalanche."""
        before_iteration = self._answering("before_training_iteration")
        before_forward = self._answering("before_forward")
        after_forward = self._answering("after_forward")
        before_backward = self._answering("before_backward")
        after_backward = self._answering("after_backward")
        before_update = self._answering("before_update")
        after_update = self._answering("after_update")
        after_iteration = self._answering("after_training_iteration")

        for mbatch in self.dataloader:
            self.mbatch = mbatch
            if self._stop_training:
                break
            self._unpack_minibatch()
            self._fire(before_iteration, kwargs)
            self.optimizer.zero_grad()
            self.loss = self._make_empty_loss()

            self._fire(before_forward, kwargs)
            self.mb_output = self.forward()
            self._fire(after_forward, kwargs)
            self.loss += self.criterion()

            self._fire(before_backward, kwargs)
            self.backward()
            self._fire(after_backward, kwargs)

            self._fire(before_update, kwargs)
            self.optimizer_step()
            self._fire(after_update, kwargs)
            self._fire(after_iteration, kwargs)

    def _fire(self, callbacks: list[Callback], kwargs: dict[str, Any]) -> None:
        for callback in callbacks:
            callback(self, **kwargs)

    def _answering(self, event: str) -> list[Callback]:
        return [getattr(plugin, event) for plugin in self.plugins if _answers(plugin, event)]


def _answers(plugin: Any, event: str) -> bool:
    """Whether a call would do something; an evaluator answers through metrics and loggers."""
    if type(plugin) is EvaluationPlugin:
        return any(_answers(part, event) for part in (*plugin.metrics, *plugin.loggers))
    method = getattr(plugin, event, None)
    if method is None:
        return False
    owner = getattr(method, "__qualname__", "").rpartition(".")[0]
    return not (owner in _EMPTY and method.__module__.startswith("avalanche."))
