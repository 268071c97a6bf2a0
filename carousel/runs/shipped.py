"""The settings that come with the package: one YAML file a method and data set."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from carousel.errors import BadInputError
from carousel.runs.config import read_config_file, resolve_config
from carousel.spelling import nearest

__all__ = ["ShippedConfig", "config_path", "list_shipped", "shipped_path"]

_SUFFIX = ".yaml"
_FOLDER = Path(str(files("carousel"))) / "configs"


@dataclass(frozen=True)
class ShippedConfig:
    """What a user wants to know before choosing a file.

    Attributes:
        name: of the file, without its ending.
        strategy: the method.
        benchmark: the stream.
        memory_size: samples in RAM.
        note: what the settings are, from the second line of the file.
    """

    name: str
    strategy: str
    benchmark: str
    memory_size: int | str | None
    note: str


def list_shipped() -> list[ShippedConfig]:
    """All files, by name.

    Example:
        >>> [config.name for config in list_shipped() if config.name.startswith("er-cifar")]
        ['er-cifar100']
    """
    return [_describe(path) for path in sorted(_FOLDER.glob(f"*{_SUFFIX}"))]


def shipped_path(name: str) -> Path:
    """The file of this name.

    Args:
        name: with or without ``.yaml``; ``++`` is written ``pp`` there.

    Raises:
        BadInputError: there is none; suggests the nearest.
    """
    names = [path.stem for path in _FOLDER.glob(f"*{_SUFFIX}")]
    stem = name.removesuffix(_SUFFIX).replace("++", "pp")
    if stem in names:
        return _FOLDER / f"{stem}{_SUFFIX}"
    near = nearest(stem, names, cutoff=0.5)
    hint = f"did you mean {near}? " if near else ""
    raise BadInputError(
        f"no configuration {name!r} is shipped", fix=f"{hint}`carousel configs ls` lists them"
    )


def config_path(given: str) -> Path:
    """The file that ``--config`` means: a path where there is a file, else a shipped name.

    Raises:
        BadInputError: a name is given and none like it is shipped.
    """
    path = Path(given).expanduser()
    if path.exists() or path.name != given:
        return path
    try:
        return shipped_path(given)
    except BadInputError as error:
        if path.suffix != _SUFFIX:
            raise
        raise BadInputError(
            f"there is no file {given} here, and {error.problem}", fix=error.fix
        ) from None


def _describe(path: Path) -> ShippedConfig:
    config = resolve_config(file=read_config_file(path))
    note = path.read_text("utf-8").splitlines()[1].removeprefix("#").strip()
    return ShippedConfig(path.stem, config.strategy, config.benchmark, config.memory_size, note)
