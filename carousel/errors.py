"""The errors that Carousel raises, in one vocabulary for every floor of the house.

Everything derives from `CarouselError`, so a caller can catch one class. Bad input is a
`BadInputError` (also a `ValueError`) and says which value is wrong and how to mend it.
"""

from __future__ import annotations

__all__ = [
    "BadInputError",
    "CarouselError",
    "CheckpointError",
    "CorruptRecordError",
    "DatasetMissingError",
    "DivergedError",
    "DuplicateIdError",
    "ForeignStorageError",
    "SchemaMismatchError",
    "StorageClosedError",
    "StorageCorruptedError",
    "StorageError",
    "StorageIOError",
    "StorageLockedError",
    "TierFullError",
    "UncleanStorageError",
    "WorkerError",
]


class CarouselError(Exception):
    """Base class of every error that the package raises on purpose."""


class BadInputError(CarouselError, ValueError):
    """A value from the caller cannot be used; nothing was changed.

    Args:
        problem: one sentence that names the value.
        fix: one sentence that says what to do instead.

    Example:
        >>> raise BadInputError("swap_ratio is 1.5", fix="give a number from 0 to 1")
        Traceback (most recent call last):
        ...
        carousel.errors.BadInputError: swap_ratio is 1.5: give a number from 0 to 1
    """

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem}: {self.fix}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_bad_input, (type(self), self.problem, self.fix)


class SchemaMismatchError(BadInputError):
    """Samples, memory and storage do not hold the same fields, shapes or dtypes."""


class DuplicateIdError(BadInputError):
    """An id was presented again with other content; stored records never change silently."""


class DatasetMissingError(BadInputError):
    """A benchmark's package or files are not on this machine; the fix says how to get them."""


class StorageError(CarouselError):
    """Base class of what can go wrong in a storage tier."""


class TierFullError(StorageError):
    """The budget, the map or the disk is full and the eviction rule could make no room."""


class CorruptRecordError(StorageError):
    """A record failed its checksum; it was set aside and is not served again."""


class StorageCorruptedError(StorageError):
    """A storage file is truncated or damaged beyond single records."""


class ForeignStorageError(StorageError):
    """The path holds files that Carousel did not write, or of an unknown format version."""


class StorageLockedError(StorageError):
    """Another process owns the storage for writing.

    Args:
        message: the sentence for the user.
        owner_pid: process id of the owner, None when it could not be read.
    """

    def __init__(self, message: str, owner_pid: int | None = None) -> None:
        super().__init__(message, owner_pid)
        self.owner_pid = owner_pid

    def __str__(self) -> str:
        return str(self.args[0])


class UncleanStorageError(StorageError):
    """A tier without power-loss durability was not closed before the machine went down."""


class StorageClosedError(StorageError):
    """The tier was used after `close()`."""


class StorageIOError(StorageError):
    """The operating system reported an I/O error that retrying did not cure."""


class CheckpointError(CarouselError):
    """A checkpoint is missing, damaged, or belongs to another configuration."""


class DivergedError(CarouselError):
    """The loss is NaN or infinite. On the CPU its step was not taken; no checkpoint has it.

    Args:
        loss: its value.
        experience: number of the experience being learned, from 0.
        iteration: number of the step in the run, from 1.
        checkpoint: path of the last checkpoint, None if there is none or nobody keeps them.
    """

    def __init__(
        self, loss: float, experience: int, iteration: int, checkpoint: str | None = None
    ) -> None:
        super().__init__(loss, experience, iteration, checkpoint)
        self.loss = loss
        self.experience = experience
        self.iteration = iteration
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        where = f"experience {self.experience + 1}, iteration {self.iteration}"
        last = f", last checkpoint {self.checkpoint}" if self.checkpoint else ""
        return f"the loss is {self.loss} in {where}: lower the learning rate{last}"


class WorkerError(CarouselError):
    """A background worker failed; raised at `flush()` or `close()` with its cause attached."""


def _rebuild_bad_input(kind: type[BadInputError], problem: str, fix: str) -> BadInputError:
    return kind(problem, fix=fix)
