"""glyph-94: the printable ASCII characters in real typefaces, in colour, turned and shifted.

Classes are the characters, groups are the faces. Colours, gradients, noise and position carry no
information about the class. The set is drawn from installed fonts in some seconds and kept in the
cache; no image is shipped or downloaded.
"""

from __future__ import annotations

import hashlib
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from carousel.data.cache import Arrays, cached, content_hash
from carousel.data.dataset import ArrayDataset
from carousel.data.source import LoadOptions, Progress, Source
from carousel.errors import BadInputError

__all__ = ["FONT_FOLDER", "SOURCE", "build", "font_files", "load"]

FONT_FOLDER = Path("/usr/share/fonts/truetype/aenigma")
"""Where Debian's fonts-aenigma puts its typefaces."""

_BUILDER = 1
_REFERENCE = "3a6219ae8e6ccf4c066a3be824f0122da476494c3c6aefd6f300e07dd000a515"
_SIDE = 32
_CANVAS = 64
_CODES = range(33, 127)
_FEWEST = 62
_PROBE = 40
"""Font size at which a face is measured, so that all faces are drawn about equally large."""
_LICENSE = "fonts-aenigma: redistribution and modification with attribution (Brian Kent)"
_CITATION = "AEnigma fonts by Brian Kent, Debian package fonts-aenigma"

Floats = NDArray[np.float32]


def load(options: LoadOptions) -> ArrayDataset:
    """40,270 images (3, 32, 32) uint8 of 94 classes in 463 groups, from the cache or built.

    Raises:
        BadInputError: no face in the folder could be used.
    """
    folder = options.root or FONT_FOLDER
    paths = font_files(folder)
    versions = {"pillow": version("pillow"), "freetype": str(features.version("freetype2"))}
    key: dict[str, str | int] = {"builder": _BUILDER, "fonts": _fingerprint(paths), **versions}
    arrays = cached("glyph-94", key, lambda: _build_all(paths, options.progress))
    return ArrayDataset.of(
        arrays["x"],
        arrays["y"],
        group=arrays["group"],
        class_names=[chr(code) for code in _CODES],
        layout="NCHW",
        name="glyph-94",
        meta={
            "license": _LICENSE if folder == FONT_FOLDER else f"of the fonts in {folder}",
            "citation": _CITATION if folder == FONT_FOLDER else f"the fonts in {folder}",
            "versions": versions,
            "content_hash": content_hash(arrays),
        },
    )


def font_files(folder: Path) -> list[Path]:
    """The .ttf and .otf files under a folder, sorted by file name."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in (".ttf", ".otf"))
    return sorted(found, key=lambda path: (path.name, str(path)))


def build(paths: list[Path], progress: Progress | None = None) -> Arrays:
    """Draw every character of every face once; a function of the files alone.

    Left out are faces with fewer than 62 of the 94 characters, characters without ink, and
    lower-case letters that look like the upper-case ones. Each image has a generator of its own,
    seeded by the file's content and the character: rotation up to 12 degrees, width 0.85 to 1.1,
    shift up to 3 of 64 pixels, two colours that contrast, a linear gradient, noise.

    Args:
        paths: font files.
        progress: called after each face.

    Returns:
        x (n, 3, 32, 32) uint8, y (n,) uint8 label = code - 33, group (n,) int16 place in `paths`.
    """
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    groups: list[int] = []
    for number, path in enumerate(paths):
        codes, drawn = _draw_face(path)
        images.append(drawn)
        labels += [code - _CODES.start for code in codes]
        groups += [number] * len(codes)
        if progress is not None:
            progress(number + 1, len(paths))
    return {
        "x": np.concatenate([np.empty((0, 3, _SIDE, _SIDE), np.uint8), *images]),
        "y": np.array(labels, np.uint8),
        "group": np.array(groups, np.int16),
    }


def _build_all(paths: list[Path], progress: Progress | None) -> Arrays:
    arrays = build(paths, progress)
    if not len(arrays["y"]):
        raise BadInputError(
            "none of the fonts has enough of the 94 characters", fix="give a folder of Latin fonts"
        )
    made = content_hash(arrays)
    if paths[0].parent == FONT_FOLDER and made != _REFERENCE:
        warnings.warn(
            f"glyph-94 was built with content {made[:12]}, the reference build has "
            f"{_REFERENCE[:12]} (fonts-aenigma 0.0.20080511, pillow 13.0.0, FreeType 2.14.3): "
            "figures may differ a little",
            stacklevel=2,
        )
    return arrays


def _draw_face(path: Path) -> tuple[list[int], NDArray[np.uint8]]:
    """Codes and images (k, 3, 32, 32) of one face, none when it cannot be used."""
    empty = np.empty((0, 3, _SIDE, _SIDE), np.uint8)
    try:
        font = _sized(path)
        inks = {} if font is None else _inks(font)
    except OSError:
        return [], empty
    if len(inks) < _FEWEST:
        return [], empty
    _drop_unicase(inks)
    digest = int.from_bytes(hashlib.sha1(path.read_bytes()).digest()[:8], "big")
    generators = [np.random.default_rng([digest, code]) for code in inks]
    masks = [_warp(ink, rng) for ink, rng in zip(inks.values(), generators, strict=True)]
    return list(inks), _paint(np.stack(masks), generators)


def _sized(path: Path) -> ImageFont.FreeTypeFont | None:
    """The face at the size at which its capitals fill about 0.6 of the canvas."""
    font = _open(path, _PROBE)
    boxes = [font.getbbox(chr(code)) for code in range(ord("A"), ord("Z") + 1)]
    extents = [max(right - left, bottom - top) for left, top, right, bottom in boxes]
    typical = float(np.median(extents))
    if typical < 1:
        return None
    return _open(path, int(np.clip(_PROBE * 0.6 * _CANVAS / typical, 8, 160)))


def _open(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _inks(font: ImageFont.FreeTypeFont) -> dict[int, Image.Image]:
    """Each character of the face in white on black; absent and blank ones are left out."""
    absent = _draw(font, "\uffff").tobytes()
    inks = {code: _draw(font, chr(code)) for code in _CODES}
    return {code: ink for code, ink in inks.items() if ink.getbbox() and ink.tobytes() != absent}


def _draw(font: ImageFont.FreeTypeFont, char: str) -> Image.Image:
    image = Image.new("L", (_CANVAS, _CANVAS))
    ImageDraw.Draw(image).text((_CANVAS // 2, 44), char, font=font, fill=255, anchor="ms")
    return image


def _drop_unicase(inks: dict[int, Image.Image]) -> None:
    for lower in range(ord("a"), ord("z") + 1):
        upper = lower - 32
        if lower in inks and upper in inks and inks[lower].tobytes() == inks[upper].tobytes():
            del inks[lower]


def _warp(ink: Image.Image, rng: np.random.Generator) -> Floats:
    """Turn, widen and shift around the centre, then halve: (32, 32) in 0..1."""
    angle = np.deg2rad(rng.uniform(-12, 12))
    stretch = rng.uniform(0.85, 1.1)
    shift = rng.uniform(-3, 3, 2)
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    middle = _CANVAS / 2
    a, b, d, e = cos / stretch, sin / stretch, -sin, cos
    centre = shift + middle
    c = middle - a * centre[0] - b * centre[1]
    f = middle - d * centre[0] - e * centre[1]
    turned = ink.transform(
        ink.size, Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR
    )
    small = turned.resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / np.float32(255)


def _paint(masks: Floats, generators: list[np.random.Generator]) -> NDArray[np.uint8]:
    """Masks (k, 32, 32) as colour images (k, 3, 32, 32): figure over ground, gradient, noise."""
    colours = np.stack([_colours(rng) for rng in generators])
    slopes = np.stack([rng.uniform(-30, 30, 2) for rng in generators]).astype(np.float32)
    noise = np.stack(
        [rng.standard_normal((3, _SIDE, _SIDE), dtype=np.float32) for rng in generators]
    )
    ramp = np.linspace(-1, 1, _SIDE, dtype=np.float32)
    gradient = slopes[:, 0, None, None] * ramp[:, None] + slopes[:, 1, None, None] * ramp
    ground = colours[:, 0, :, None, None] + gradient[:, None] + 6 * noise
    ink = masks[:, None]
    painted = ground * (1 - ink) + colours[:, 1, :, None, None] * ink
    return np.clip(painted, 0, 255).astype(np.uint8)


def _colours(rng: np.random.Generator) -> Floats:
    """Ground and figure colour (2, 3), on average more than 55 levels apart."""
    while True:
        pair = rng.uniform(0, 255, (2, 3)).astype(np.float32)
        if abs(float((pair[0] - pair[1]).mean())) > 55:
            return pair


def _fingerprint(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _missing(root: Path | None) -> str | None:
    if font_files(root or FONT_FOLDER):
        return None
    if root is not None:
        return f"put .ttf or .otf files in {root}, or leave the data root out"
    return (
        "install the fonts: apt-get install fonts-aenigma (0.0.20080511), "
        "or give a folder of .ttf files with --data-root"
    )


SOURCE = Source(
    name="glyph-94",
    n_classes=94,
    shape=(3, _SIDE, _SIDE),
    samples=40270,
    experiences=10,
    license=_LICENSE,
    citation=_CITATION,
    missing=_missing,
    load=load,
)
