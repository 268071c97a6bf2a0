"""Memory for a step that is still to be applied: its gradients, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from carousel.offload.aside_size import aside_bytes, gradient_bytes, place_bytes
from carousel.offload.plan import ParamSpec
from carousel.offload.ring import Bytes, anonymous

__all__ = ["Aside"]


class Aside:
    """A place for the gradient and one for the next value of every parameter, reused every step.

    Args:
        specs: of the parameters, by number; those without states get no place.

    Example:
        >>> aside = Aside([ParamSpec((2, 3), "float32")])
        >>> aside.keep({0: torch.ones(2, 3)})[0].shape, aside.values([0])[0].dtype
        (torch.Size([6]), torch.float32)
    """

    def __init__(self, specs: Sequence[ParamSpec]) -> None:
        self._slab = anonymous(aside_bytes(specs))
        self._gradients: dict[int, Bytes] = {}
        self._values: dict[int, Tensor] = {}
        start = 0
        for number, spec in enumerate(specs):
            if spec.stored:
                middle, end = start + gradient_bytes(spec), start + place_bytes(spec)
                self._gradients[number] = self._slab[start:middle]
                value = torch.from_numpy(self._slab[middle:end]).view(_dtype(spec))
                self._values[number] = value[: spec.numel]
                start = end

    def keep(self, gradients: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Copies of gradients, one-dimensional, good until the next call.

        Args:
            gradients: by number, each of its parameter's shape and at most as wide as fp32 where
                the parameter is narrower.
        """
        kept: dict[int, Tensor] = {}
        for number, gradient in gradients.items():
            place = torch.from_numpy(self._gradients[number]).view(gradient.dtype)
            kept[number] = place[: gradient.numel()]
            kept[number].view(gradient.shape).copy_(gradient)
        return kept

    def values(self, numbers: Sequence[int]) -> dict[int, Tensor]:
        """The places for the next values of some parameters, one-dimensional, by number."""
        return {number: self._values[number] for number in numbers}


def _dtype(spec: ParamSpec) -> torch.dtype:
    found: torch.dtype = getattr(torch, spec.dtype)
    return found
