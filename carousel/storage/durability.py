"""What a commit survives: the words for it, on every floor."""

from __future__ import annotations

from typing import Literal, TypeAlias

from carousel.errors import BadInputError

__all__ = ["DURABILITIES", "Durability", "check_durability", "survives_power_loss"]

Durability: TypeAlias = Literal["durable", "bounded", "process", "ephemeral"]
DURABILITIES: tuple[Durability, ...] = ("durable", "bounded", "process", "ephemeral")
"""``durable`` survives power loss; ``bounded`` loses at most the last group to one; ``process``
survives a kill but not power; ``ephemeral`` promises nothing after an unclean end."""


def check_durability(value: object) -> None:
    """Refuse another word.

    Raises:
        BadInputError: it is one.
    """
    if value not in DURABILITIES:
        raise BadInputError(
            f"durability is {value!r}", fix=f"choose one of {', '.join(DURABILITIES)}"
        )


def survives_power_loss(durability: Durability) -> bool:
    """Whether what was committed is on the medium, so that no clean end is needed.

    Example:
        >>> [word for word in DURABILITIES if survives_power_loss(word)]
        ['durable', 'bounded']
    """
    return durability in ("durable", "bounded")
