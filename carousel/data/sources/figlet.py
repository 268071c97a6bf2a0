"""figlet-94: the printable ASCII characters in the ASCII-art fonts that pyfiglet carries.

Classes are the characters, groups are the fonts. The set is built in seconds from the installed
package and kept in the cache; no image is shipped or downloaded.
"""

from __future__ import annotations

import hashlib
import warnings
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from carousel.data.cache import Arrays, cached, content_hash
from carousel.data.dataset import ArrayDataset
from carousel.data.source import LoadOptions, Progress, Source, package_present

__all__ = ["SOURCE", "build", "font_names", "load"]

_BUILDER = 1
_REFERENCE = "8946b0d79d755830e455c9e753d73884df150559a20d75dff57719f145b7e3f2"
_SIDE = 28
_X_SCALE = 0.55
"""A character cell of a terminal is about half as wide as it is high."""
_CODES = range(33, 127)
_FEWEST = 60
_LIGHT = {".": 60, ",": 70, "'": 80, "-": 90, "_": 100, ":": 110}
"""Ink of characters that draw thin lines; anything else but blanks is 255."""
_LICENSE = "pyfiglet: MIT; each font carries its own free notice"
_CITATION = "pyfiglet (a port of FIGlet by Glenn Chappell and Ian Chai), fonts by their authors"

Mask = NDArray[np.uint8]


def load(options: LoadOptions) -> ArrayDataset:
    """39,701 images (1, 28, 28) uint8 of 94 classes in 458 groups, from the cache or built."""
    versions = {"pyfiglet": version("pyfiglet"), "pillow": version("pillow")}
    key: dict[str, str | int] = {"builder": _BUILDER, **versions}
    arrays = cached("figlet-94", key, lambda: _build_all(options.progress))
    return ArrayDataset.of(
        arrays["x"],
        arrays["y"],
        group=arrays["group"],
        class_names=[chr(code) for code in _CODES],
        name="figlet-94",
        meta={
            "license": _LICENSE,
            "citation": _CITATION,
            "versions": versions,
            "content_hash": content_hash(arrays),
        },
    )


def font_names() -> list[str]:
    """The fonts of the installed package, sorted; fonts of the user are left out."""
    entries = (entry.name for entry in files("pyfiglet.fonts").iterdir())
    return sorted({name.rsplit(".", 1)[0] for name in entries if name.endswith((".flf", ".tlf"))})


def build(fonts: list[str], progress: Progress | None = None) -> Arrays:
    """Draw every character of the fonts once; a function of its arguments alone.

    Left out are fonts that draw as an earlier one does, fonts with fewer than 60 characters,
    and lower-case letters that look like the upper-case ones.

    Args:
        fonts: names as in `font_names`.
        progress: called after each font.

    Returns:
        x (n, 28, 28) uint8, y (n,) uint8 label = code - 33, group (n,) int16 place in `fonts`.
    """
    images: list[Mask] = []
    labels: list[int] = []
    groups: list[int] = []
    seen: set[bytes] = set()
    for number, name in enumerate(fonts):
        masks = _masks(name)
        look = hashlib.sha256(b"".join(mask.tobytes() for mask in masks.values())).digest()
        _drop_unicase(masks)
        if look not in seen and len(masks) >= _FEWEST:
            seen.add(look)
            images += [_fit(mask) for mask in masks.values()]
            labels += [code - _CODES.start for code in masks]
            groups += [number] * len(masks)
        if progress is not None:
            progress(number + 1, len(fonts))
    return {
        "x": np.stack(images) if images else np.empty((0, _SIDE, _SIDE), np.uint8),
        "y": np.array(labels, np.uint8),
        "group": np.array(groups, np.int16),
    }


def _build_all(progress: Progress | None) -> Arrays:
    arrays = build(font_names(), progress)
    if (made := content_hash(arrays)) != _REFERENCE:
        warnings.warn(
            f"figlet-94 was built with content {made[:12]}, the reference build has "
            f"{_REFERENCE[:12]} (pyfiglet 1.0.4, pillow 13.0.0): figures may differ a little",
            stacklevel=2,
        )
    return arrays


def _masks(name: str) -> dict[int, Mask]:
    """The ink of each character cell by character code; characters with less than 2 are out."""
    import pyfiglet

    font = pyfiglet.FigletFont(name)
    masks = {}
    for code in _CODES:
        rows = font.chars.get(code) or []
        mask = _ink(rows, font.hardBlank)
        if np.count_nonzero(mask) >= 2:
            masks[code] = mask
    return masks


def _ink(rows: list[str], hard_blank: str) -> Mask:
    width = max(map(len, rows), default=0)
    blank = (" ", hard_blank)
    cells = [
        [0 if char in blank else _LIGHT.get(char, 255) for char in row.ljust(width)] for row in rows
    ]
    return np.array(cells, np.uint8).reshape(len(rows), width)


def _drop_unicase(masks: dict[int, Mask]) -> None:
    for lower in range(ord("a"), ord("z") + 1):
        upper = lower - 32
        if lower in masks and upper in masks and np.array_equal(masks[lower], masks[upper]):
            del masks[lower]


def _fit(mask: Mask) -> Mask:
    """The cell, narrowed to its looks in a terminal, centred and as large as fits."""
    height, width = mask.shape
    scale = _SIDE / max(height, width * _X_SCALE)
    size = (max(1, round(width * _X_SCALE * scale)), max(1, round(height * scale)))
    image = Image.fromarray(mask).resize(size, Image.Resampling.BILINEAR)
    canvas = Image.new("L", (_SIDE, _SIDE))
    canvas.paste(image, ((_SIDE - image.width) // 2, (_SIDE - image.height) // 2))
    return np.asarray(canvas)


def _missing(root: Path | None) -> str | None:  # noqa: ARG001 - the checks share a signature
    if package_present("pyfiglet"):
        return None
    return "install pyfiglet 1.0.4: pip install 'carousel-memory[data]'"


SOURCE = Source(
    name="figlet-94",
    n_classes=94,
    shape=(1, _SIDE, _SIDE),
    samples=39701,
    experiences=10,
    license=_LICENSE,
    citation=_CITATION,
    missing=_missing,
    load=load,
)
