"""Options from a DeepSpeed configuration, for those who come from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from carousel.errors import BadInputError
from carousel.offload.plan import CUT
from carousel.offload.room import LARGEST_CHUNK

__all__ = ["from_deepspeed"]

_READERS = 2


def from_deepspeed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `TieredAdamW` for a DeepSpeed configuration.

    Read are ``optimizer`` (of type Adam or AdamW), ``gradient_clipping`` and
    ``zero_optimization``, and of that ``stage``, ``sub_group_size`` and ``offload_optimizer``. What
    only concerns a GPU may be given where it changes no result. A key that is not known is an
    error, never ignored.

    Args:
        config: as in DeepSpeed's JSON file, the named parts of it only.

    Raises:
        BadInputError: a key or a value has no counterpart.

    Example:
        >>> from_deepspeed({
        ...     "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        ...     "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/ssd"}},
        ... })
        {'lr': 0.01, 'storage': PosixPath('/ssd/carousel-offload')}
    """
    made: dict[str, Any] = {}
    _each(
        "",
        config,
        made,
        {
            "optimizer": _optimizer,
            "zero_optimization": _zero,
            "gradient_clipping": lambda value, out: out.update(clip_norm=value) if value else None,
        },
    )
    return made


_Take = Callable[[Any, dict[str, Any]], None]


def _each(
    where: str, config: Mapping[str, Any], made: dict[str, Any], takes: Mapping[str, _Take]
) -> None:
    for key, value in config.items():
        if key not in takes:
            raise BadInputError(
                f"the DeepSpeed key {where}{key} has no counterpart", fix="leave it out"
            )
        takes[key](value, made)


def _optimizer(section: Mapping[str, Any], made: dict[str, Any]) -> None:
    kinds = {"adam": True, "adamw": True}
    kind = str(section.get("type", "AdamW"))
    if kind.lower() not in kinds:
        raise BadInputError(f"optimizer.type is {kind!r}", fix="use Adam or AdamW")
    unknown = set(section) - {"type", "params"}
    if unknown:
        raise BadInputError(f"optimizer has {sorted(unknown)}", fix="leave it out")
    _each(
        "optimizer.params.",
        section.get("params", {}),
        made,
        {
            **{name: _copy(name) for name in ("lr", "eps", "weight_decay")},
            "betas": lambda value, out: out.update(betas=tuple(value)),
            "adam_w_mode": lambda value, out: out.update(decoupled=bool(value)),
            "torch_adam": _only(False, True),
        },
    )


def _zero(section: Mapping[str, Any], made: dict[str, Any]) -> None:
    _each(
        "zero_optimization.",
        section,
        made,
        {
            "stage": _only(1, 2, 3),
            "sub_group_size": _chunk,
            "offload_optimizer": _offload,
        },
    )


def _offload(section: Mapping[str, Any], made: dict[str, Any]) -> None:
    device = section.get("device", "none")
    if device == "nvme" and "nvme_path" not in section:
        raise BadInputError("offload_optimizer.device is nvme", fix="give nvme_path too")
    _each(
        "offload_optimizer.",
        section,
        made,
        {
            "device": _only("none", "cpu", "nvme"),
            "nvme_path": lambda value, out: (
                out.update(storage=Path(value) / "carousel-offload") if device == "nvme" else None
            ),
            "buffer_count": lambda value, out: out.update(ring=max(int(value), _READERS + 2)),
            "pin_memory": _only(False, True),
            "pipeline_read": _only(False, True),
            "pipeline_write": _only(False, True),
            "fast_init": _only(False, True),
            "ratio": _only(1.0),
            "super_offload": _only(False),
        },
    )


def _copy(name: str) -> _Take:
    return lambda value, made: made.update({name: value})


def _chunk(value: Any, made: dict[str, Any]) -> None:
    numel = min(int(float(value)), LARGEST_CHUNK) // CUT * CUT
    made["chunk_numel"] = max(numel, CUT)


def _only(*values: Any) -> _Take:
    """Accept these values, which change nothing here."""

    def take(value: Any, _: dict[str, Any]) -> None:
        if value not in values:
            raise BadInputError(
                f"a DeepSpeed option is {value!r}", fix=f"only {list(values)} has a counterpart"
            )

    return take
