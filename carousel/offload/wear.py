"""How much an optimizer has written to its storage, and how much it may: flash wears out."""

from __future__ import annotations

from carousel.errors import TierFullError

__all__ = ["Wear"]


class Wear:
    """Bytes of records written to a folder since it was made.

    The count is part of every commit, so it survives a resume. What was written after the last
    commit before a kill is not in it, which is a step's bytes with ``commit_every=1``. Without
    commits it is that of one optimizer. The commits themselves, a few KiB each, are not counted.

    Args:
        limit: bytes that may be written in all, None for no limit.

    Attributes:
        before: written to files that are not open any more, or before a resume.

    Example:
        >>> wear = Wear(1000)
        >>> wear.refuse(0, 400, "the next step")
        >>> wear.refuse(800, 400, "the next step")
        Traceback (most recent call last):
        ...
        carousel.errors.TierFullError: the next step writes up to 400 bytes, 800 were written, and \
max_bytes_written is 1000; give a higher limit when resuming
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.before = 0

    def refuse(self, given: int, more: int, what: str) -> None:
        """Refuse to write beyond the limit.

        Args:
            given: bytes that went, or are going, to the file that is open.
            more: bytes that are to follow.
            what: writes them; begins the sentence.

        Raises:
            TierFullError: they are too many; nothing was changed.
        """
        so_far = self.before + given
        if self.limit is not None and so_far + more > self.limit:
            raise TierFullError(
                f"{what} writes up to {more} bytes, {so_far} were written, and max_bytes_written "
                f"is {self.limit}; give a higher limit when resuming"
            )
