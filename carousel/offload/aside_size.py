"""How large the memory for a step that is still to be applied is; told without loading torch."""

from __future__ import annotations

from collections.abc import Sequence

from carousel.offload.plan import ParamSpec
from carousel.offload.record import ITEM_BYTES

__all__ = ["aside_bytes", "gradient_bytes", "place_bytes"]

_LINE = 64
_WIDEST_GRADIENT = 4


def aside_bytes(specs: Sequence[ParamSpec]) -> int:
    """Bytes that `carousel.offload.aside.Aside` takes for these parameters."""
    return sum(place_bytes(spec) for spec in specs if spec.stored)


def place_bytes(spec: ParamSpec) -> int:
    """Bytes for a parameter's gradient and its next value."""
    return gradient_bytes(spec) + _whole_lines(spec.numel * ITEM_BYTES[spec.dtype])


def gradient_bytes(spec: ParamSpec) -> int:
    """A 16-bit parameter may have gradients in fp32 (``grad_dtype``), so there is room for them."""
    return _whole_lines(spec.numel * max(_WIDEST_GRADIENT, ITEM_BYTES[spec.dtype]))


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE
