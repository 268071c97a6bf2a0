"""A network that is trained by its logits and predicts by the nearest mean of its features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from avalanche.models.utils import is_multi_task_module
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import normalize

from carousel.errors import BadInputError
from carousel.strategies.uncertainty import evaluating

__all__ = ["FeatureSpec", "NearestMean"]

FeatureSpec: TypeAlias = str | Callable[[Tensor], Tensor] | None
"""Where features come from: a module of the network by name (its output), a callable from model
input (n, *shape) to features (n, ...), or None for what goes into the last linear layer."""

NEVER = -1000.0
"""The score of a class without a mean: far below that of any other, which is at least -2."""


class NearestMean(Module):
    """Wraps a network: logits in training mode, minus distances to class means in evaluation.

    A sample's features are brought to length 1, and its score for a class is minus the Euclidean
    distance to the class mean, -2 to 0 (Rebuffi et al., "iCaRL", CVPR 2017, Algorithm 1). Classes
    without a mean have the score -1000. As long as no class has one, logits are given in both
    modes. The means are buffers and travel in ``state_dict()``; what is loaded may have another
    number of classes.

    Args:
        net: the network, with logits (n, C); a growing head of Avalanche is fine.
        features: see `FeatureSpec`.

    Attributes:
        net: the network.
        means: (C, d) float32 class means of length 1.
        known: (C,) bool, which of them are set.

    Raises:
        BadInputError: there is no such module, no linear layer, or the network has a head a task.

    Example:
        >>> model = NearestMean(torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(2, 2)))
        >>> model.set_means(torch.eye(2), torch.tensor([True, True]))
        >>> model.eval()(torch.tensor([[3.0, 0.0]])).tolist()
        [[-0.0, -1.4142135381698608]]
    """

    means: Tensor
    known: Tensor

    def __init__(self, net: Module, features: FeatureSpec = None) -> None:
        super().__init__()
        _check(net, features)
        self.net = net
        self._spec = features
        self._outputs = 0
        self.register_buffer("means", torch.zeros(0, 0))
        self.register_buffer("known", torch.zeros(0, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, C), or in evaluation mode scores (n, C)."""
        if self.training or len(self.known) == 0:
            logits: Tensor = self.net(x)
            self._outputs = int(logits.shape[1])
            return logits
        features, width = self._run(x)
        scores = features.new_full((len(x), max(width, len(self.known))), NEVER)
        scores[:, : len(self.known)] = -torch.cdist(features, self.means)
        scores[:, : len(self.known)][:, ~self.known] = NEVER
        return scores

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Features (n, d) of length 1 for model input (n, *shape), in evaluation mode."""
        with evaluating(self):
            return self._run(x)[0]

    def set_means(self, means: Tensor, known: Tensor) -> None:
        """Predict by these from now on.

        Args:
            means: (C, d) floats of any length, which is made 1.
            known: (C,) bool; the other rows are ignored.
        """
        place = _place_of(self.net, self.means)
        self.means = normalize(means.float(), dim=1).to(place)
        self.known = known.to(place)

    def _run(self, x: Tensor) -> tuple[Tensor, int]:
        """Features of length 1, and how many classes the network knows of (0: not told yet)."""
        if callable(self._spec):
            found, width = self._spec(x), self._outputs
        else:
            found, width = self._watch(x)
        return normalize(found.flatten(1).float(), dim=1), width

    def _watch(self, x: Tensor) -> tuple[Tensor, int]:
        seen: list[tuple[Module, Tensor]] = []
        net = _plain(self.net)
        with _hooks(net, self._spec, seen):
            logits = net(x)
        if not seen:
            raise BadInputError(
                f"nothing passes through {self._spec or 'a linear layer'} of the model",
                fix="name a module of the model as features=, or give a callable",
            )
        layer, features = seen[-1]
        of_head = self._spec is not None or (
            features.ndim == 2 and getattr(layer, "out_features", None) == logits.shape[1]
        )
        if not of_head or len(features) != len(x):
            raise BadInputError(
                "the model's logits do not come from its last linear layer",
                fix="name a module of the model as features=, or give a callable",
            )
        return features, int(logits.shape[1])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("means", "known"):
            value, mine = state_dict.get(prefix + name), getattr(self, name)
            if value is not None and value.shape != mine.shape:
                setattr(self, name, mine.new_empty(value.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)


@contextmanager
def _hooks(net: Module, name: object, seen: list[tuple[Module, Tensor]]) -> Iterator[None]:
    """Collects what passes: out of the module of that name, or into every linear layer."""
    with ExitStack() as stack:
        if isinstance(name, str):
            handle = net.get_submodule(name).register_forward_hook(
                lambda module, _, out: seen.append((module, out))
            )
            stack.callback(handle.remove)
        else:
            for module in _linear(net):
                handle = module.register_forward_pre_hook(
                    lambda module, args: seen.append((module, args[0]))
                )
                stack.callback(handle.remove)
        yield


def _plain(net: Module) -> Module:
    """The network itself: what `torch.compile` made of it does not tell what passes through."""
    plain = getattr(net, "_orig_mod", net)
    return plain if isinstance(plain, Module) else net


def _linear(net: Module) -> list[Module]:
    return [module for module in net.modules() if isinstance(module, Linear)]


def _place_of(net: Module, other: Tensor) -> torch.device:
    return next((parameter.device for parameter in net.parameters()), other.device)


def _check(net: Module, features: FeatureSpec) -> None:
    if is_multi_task_module(net):
        raise BadInputError(
            "the model has a head for each task, and class means choose among all classes",
            fix="use a model with one head",
        )
    if isinstance(features, str):
        names = [name for name, _ in _plain(net).named_modules() if name]
        if features not in names:
            raise BadInputError(
                f"the model has no module {features!r}", fix=f"use one of {', '.join(names)}"
            )
    elif features is None and not _linear(net):
        raise BadInputError(
            "the model has no linear layer", fix="say where its features are: features="
        )
    elif features is not None and not callable(features):
        raise BadInputError(
            f"features is {features!r}", fix="give a callable, the name of a module, or None"
        )
