"""Which parameters an optimizer has at the moment, and whether that is still so.

Avalanche replaces entries of ``group["params"]`` in place when a head grows, and appends to it; a
frozen parameter may be unfrozen. So the groups are compared with what was planned at every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from xxhash import xxh3_64

from carousel.errors import BadInputError
from carousel.offload.plan import ParamSpec

__all__ = ["Roster", "digest_of"]


@dataclass(frozen=True)
class Roster:
    """Parameters by number.

    Args:
        params: in the order of the groups.
        groups: number of each one's group.
        specs: what the plan has to know of each.
    """

    params: tuple[Tensor, ...]
    groups: tuple[int, ...]
    specs: tuple[ParamSpec, ...]

    @cached_property
    def digest(self) -> str:
        """Hexadecimal digits that differ when groups or specs do."""
        return str(xxh3_64(repr((self.groups, self.specs)).encode()).hexdigest())

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.params[0].device if self.params else torch.device("cpu")

    @staticmethod
    def of(groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, Any]) -> Roster:
        """The parameters of an optimizer now.

        Args:
            groups: its ``param_groups``.
            state: its ``state``.
        """
        params: list[Tensor] = []
        numbers: list[int] = []
        specs: list[ParamSpec] = []
        for number, group in enumerate(groups):
            for param in group["params"]:
                params.append(param)
                numbers.append(number)
                stored = _wants_states(param, state)
                dtype = str(param.dtype).removeprefix("torch.")
                specs.append(ParamSpec(tuple(param.shape), dtype, bool(group["amsgrad"]), stored))
        return Roster(tuple(params), tuple(numbers), tuple(specs))

    def holds(self, groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, Any]) -> bool:
        """Whether these are still the parameters, with all that the plan knows of them."""
        number = 0
        for at, group in enumerate(groups):
            amsgrad = bool(group["amsgrad"])
            for param in group["params"]:
                if number >= len(self.params):
                    return False
                spec = self.specs[number]
                if (
                    param is not self.params[number]
                    or at != self.groups[number]
                    or param.shape != spec.shape
                    or amsgrad != spec.amsgrad
                    or not (spec.stored or not _wants_states(param, state))
                    or spec.dtype != str(param.dtype)[6:]
                ):
                    return False
                number += 1
        return number == len(self.params)

    def carried(self, fresh: Roster, state: Mapping[Tensor, Any]) -> dict[int, int]:
        """The numbers here of parameters that are still there and have states, by their new ones.

        Args:
            fresh: the parameters now.
            state: of the optimizer.

        Raises:
            BadInputError: a parameter has state, and is new or of another size.
        """
        old = {id(param): number for number, param in enumerate(self.params)}
        numbers: dict[int, int] = {}
        for number, (param, spec) in enumerate(zip(fresh.params, fresh.specs, strict=True)):
            if not state.get(param):
                continue
            before = old.get(id(param))
            if before is None or self.specs[before].shape != spec.shape:
                raise BadInputError(
                    f"a parameter of shape {spec.shape} has state, and is new or of another size",
                    fix="remove its state, so that it begins at zero",
                )
            numbers[number] = before
        return numbers


def digest_of(params: Iterable[Tensor]) -> str:
    """A digest of the values of parameters on the CPU.

    Example:
        >>> digest_of([torch.ones(2)]) == digest_of([torch.ones(2)])
        True
    """
    digest = xxh3_64()
    for param in params:
        digest.update(param.detach().reshape(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def _wants_states(param: Tensor, state: Mapping[Tensor, Any]) -> bool:
    return param.requires_grad or param.grad is not None or bool(state.get(param))
