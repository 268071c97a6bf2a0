"""Independent, named streams of random numbers from one seed, with a state that is plain JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from carousel.errors import BadInputError, CheckpointError

__all__ = ["fresh_seed", "generator", "load_state", "state_of"]


def generator(seed: int, name: str) -> np.random.Generator:
    """A generator for one purpose, independent of every other purpose of the same seed.

    Drawing more numbers for one purpose never shifts another, so that a change of gate leaves
    the admissions as they were.

    Args:
        seed: the run's seed, at least 0.
        name: the purpose, such as ``"gate"``, ``"draw"``, ``"admission"`` or ``"sample"``.

    Raises:
        BadInputError: the seed is no integer or is negative.

    Example:
        >>> int(generator(0, "gate").integers(100)) == int(generator(0, "gate").integers(100))
        True
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise BadInputError(f"seed is {seed!r}", fix="give an integer of at least 0")
    sequence = np.random.SeedSequence(int(seed), spawn_key=tuple(name.encode()))
    return np.random.Generator(np.random.PCG64(sequence))


def fresh_seed() -> int:
    """A seed from the system's entropy, for a run that was given none; 63 bits, at least 0."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))


def state_of(rng: np.random.Generator) -> dict[str, Any]:
    """The generator's state as plain JSON types; `load_state` puts it back.

    Raises:
        BadInputError: the generator is not a PCG64, as those of `generator` are.
    """
    if not isinstance(rng.bit_generator, np.random.PCG64):
        kind = type(rng.bit_generator).__name__
        raise BadInputError(f"the generator is a {kind}", fix="use one of seeds.generator")
    state = rng.bit_generator.state
    return {
        "bit_generator": "PCG64",
        # 128-bit integers as text: not every JSON reader keeps them whole
        "state": {key: str(value) for key, value in state["state"].items()},
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def load_state(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Make `rng` go on where the generator that `state_of` was asked about stood.

    Raises:
        CheckpointError: the state is not one of `state_of`.
    """
    try:
        rng.bit_generator.state = {
            **state,
            "state": {key: int(value) for key, value in state["state"].items()},
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"this is no state of a random generator: {error}") from error
