"""A storage of several ranks is a folder with one for each, and of one number of ranks."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from carousel.errors import BadInputError
from carousel.offload.home import Home, has_states_file
from carousel.offload.plan import WHOLE
from carousel.offload.settings import OffloadSettings

__all__ = ["clear_worlds", "refuse_other_worlds"]

_RANK = re.compile(r"rank-(\d+)-of-(\d+)")


def refuse_other_worlds(settings: OffloadSettings) -> None:
    """Refuse a storage that another number of processes has made, and this one has not.

    Raises:
        BadInputError: it is.
    """
    path, folder = settings.path, settings.folder
    assert path is not None
    assert folder is not None
    if has_states_file(folder):
        return
    worlds = {world for _, world, _ in _folders(path)}
    if settings.share != WHOLE and has_states_file(path):
        worlds.add(1)
    for world in sorted(worlds - {settings.share.world}):
        raise BadInputError(
            f"{path} holds the states of {world} processes and there are {settings.share.world}",
            fix=f"start {world}, or use another path; to change the number, start {world}, call "
            "export(file), and import_(file) in a new optimizer",
        )


def clear_worlds(settings: OffloadSettings) -> None:
    """Remove what an optimizer left in a storage, of however many processes.

    Ranks share the folders of another number of ranks out among them.

    Raises:
        StorageLockedError: it is in use.
    """
    path, folder, share = settings.path, settings.folder, settings.share
    assert path is not None
    assert folder is not None
    Home.clear(folder)
    if share.rank == 0:
        Home.clear(path)
    for rank, world, other in _folders(path):
        if world != share.world and rank % share.world == share.rank:
            Home.clear(other)
            with suppress(OSError):  # it holds something else, too
                other.rmdir()


def _folders(path: Path) -> list[tuple[int, int, Path]]:
    """Rank, number of ranks, and folder of what is in a storage."""
    found = [(_RANK.fullmatch(one.name), one) for one in path.iterdir()] if path.is_dir() else []
    return [
        (int(match[1]), int(match[2]), one)
        for match, one in found
        if match is not None and has_states_file(one)
    ]
