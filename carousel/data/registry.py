"""Benchmarks by name: which there are, which are at hand, and loading one as a stream.

Nothing here imports torch until a stream is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from carousel.data.dataset import ArrayDataset
from carousel.data.source import LoadOptions, Progress, Source
from carousel.data.sources import digits, figlet, folder, glyph, npz, tiny_imagenet, vision
from carousel.errors import BadInputError, DatasetMissingError
from carousel.spelling import nearest

if TYPE_CHECKING:
    from carousel.data.stream import Scenario, Stream

__all__ = ["BenchmarkInfo", "check_benchmark", "list_benchmarks", "load_dataset", "load_stream"]

_SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        digits.SOURCE,
        figlet.SOURCE,
        glyph.SOURCE,
        *vision.SOURCES,
        tiny_imagenet.SOURCE,
    )
}

_OWN = {"folder": folder.check, "npz": npz.check}
"""Whether there is something at the path of data of the user's own."""


@dataclass(frozen=True)
class BenchmarkInfo:
    """What a user wants to know before choosing a benchmark.

    Attributes:
        name: as in ``--benchmark``.
        available: it can be loaded on this machine now.
        how_to_get: what to do to have it; empty when it is available.
        n_classes: number of classes.
        shape: of one sample, (C, H, W).
        samples: training and test together.
        experiences: default number of experiences.
        license: of the data.
        citation: whom to credit.
    """

    name: str
    available: bool
    how_to_get: str
    n_classes: int
    shape: tuple[int, ...]
    samples: int
    experiences: int
    license: str
    citation: str


def list_benchmarks(root: str | Path | None = None) -> list[BenchmarkInfo]:
    """Every named benchmark; builds nothing, reads no data and imports no torch.

    ``folder:PATH`` and ``npz:FILE`` come on top of these.

    Args:
        root: where to look for data files; by default ``$CAROUSEL_DATA`` or ``~/.cache/carousel``.

    Example:
        >>> list_benchmarks()[0].name
        'split-digits'
    """
    return [_info(source, _folder(root)) for source in _SOURCES.values()]


def check_benchmark(name: str, root: str | Path | None = None) -> None:
    """Refuse a benchmark as `load_stream` would, as far as that can be told without loading it.

    Raises:
        BadInputError: unknown name, or no such file or folder.
        DatasetMissingError: package or files are absent.
    """
    scheme, _, path = name.partition(":")
    if scheme in _OWN and path:
        _OWN[scheme](Path(path).expanduser())
        return
    source = _SOURCES.get(name)
    if source is None:
        raise _unknown(name)
    fix = source.missing(_folder(root))
    if fix is not None:
        raise DatasetMissingError(f"{name} is not on this machine", fix=fix)


def load_stream(
    name: str,
    *,
    experiences: int | None = None,
    scenario: Scenario = "class",
    seed: int | None = 0,
    class_order: str | Sequence[int] = "random",
    split_seed: int = 0,
    root: str | Path | None = None,
    limit: int | None = None,
    normalize: bool = False,
    resize: int | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> Stream:
    """A benchmark as a stream of experiences.

    Args:
        name: one of `list_benchmarks`, ``folder:PATH`` or ``npz:FILE``.
        experiences: how many; by default what is usual for the benchmark.
        scenario: "class" (new classes in each experience) or "domain" (new groups in each).
        seed: order of the classes or groups; None keeps the natural order.
        class_order: "random" (by `seed`), "sorted", a name of `CLASS_ORDERS`, or all labels in
            the order of arrival.
        split_seed: which groups or samples are held out for testing.
        root: folder of the data files, or of the fonts for glyph-94; others ignore it.
        limit: at most so many training and so many test samples of each class.
        normalize: `Stream.transform` also normalises each channel.
        resize: side length for the images of a folder.
        download: allow torchvision or Avalanche to fetch missing files; off by default.
        progress: called with (steps done, steps in all) while a set is built.

    Raises:
        BadInputError: unknown name (the nearest is suggested), or a value that cannot be used.
        DatasetMissingError: package or files are absent; the message says how to get them.

    Example:
        >>> stream = load_stream("split-digits", experiences=3)
        >>> [split.classes for split in stream.train]
        [(2, 4, 6, 7), (3, 5, 9), (0, 1, 8)]
    """
    from carousel.data.scenarios import make_stream

    options = LoadOptions(_folder(root), progress, resize, download)
    dataset, usual = _find(name, options)
    if experiences is None and scenario == "class":
        experiences = usual
    return make_stream(
        dataset,
        experiences,
        scenario=scenario,
        seed=seed,
        class_order=class_order,
        split_seed=split_seed,
        limit=limit,
        normalize=normalize,
    )


def load_dataset(name: str, options: LoadOptions | None = None) -> ArrayDataset:
    """A benchmark as one data set, not cut into experiences; errors as in `load_stream`."""
    return _find(name, options or LoadOptions())[0]


def _find(name: str, options: LoadOptions) -> tuple[ArrayDataset, int | None]:
    """The data and the usual number of experiences, None to let the number of classes decide."""
    scheme, _, path = name.partition(":")
    if scheme == "folder" and path:
        return folder.load(Path(path).expanduser(), options.resize, options.progress), None
    if scheme == "npz" and path:
        return npz.load(Path(path).expanduser()), None
    source = _SOURCES.get(name)
    if source is None:
        raise _unknown(name)
    fix = source.missing(options.root)
    if fix is not None and not (options.download and source.downloads):
        raise DatasetMissingError(f"{name} is not on this machine", fix=fix)
    return source.load(options), source.experiences


def _folder(root: str | Path | None) -> Path | None:
    return None if root is None else Path(root).expanduser()


def _unknown(name: str) -> BadInputError:
    near = nearest(name, _SOURCES, cutoff=0.4)
    hint = f"did you mean {near}? " if near else ""
    known = ", ".join([*_SOURCES, "folder:PATH", "npz:FILE"])
    return BadInputError(f"benchmark {name!r} is unknown", fix=f"{hint}choose one of {known}")


def _info(source: Source, root: Path | None) -> BenchmarkInfo:
    how = source.missing(root)
    return BenchmarkInfo(
        source.name,
        how is None,
        how or "",
        source.n_classes,
        source.shape,
        source.samples,
        source.experiences,
        source.license,
        source.citation,
    )
