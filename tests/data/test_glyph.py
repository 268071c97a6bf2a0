import shutil

import numpy as np
import pytest

from carousel.data import load_stream
from carousel.data.cache import content_hash
from carousel.data.sources import glyph
from carousel.errors import BadInputError


def some_fonts(count):
    """Faces of Debian's package, else those that matplotlib carries."""
    found = glyph.font_files(glyph.FONT_FOLDER)
    if not found:
        matplotlib = pytest.importorskip("matplotlib", reason="no fonts to draw with")
        from pathlib import Path

        found = glyph.font_files(Path(matplotlib.get_data_path()) / "fonts" / "ttf")
    return found[:count]


@pytest.fixture(scope="module")
def paths():
    return some_fonts(8)


@pytest.fixture(scope="module")
def built(paths):
    return glyph.build(paths)


def test_images_of_every_character(built):
    assert built["x"].shape[1:] == (3, 32, 32)
    assert built["x"].dtype == np.uint8
    assert set(range(94)) >= set(built["y"].tolist())
    assert len(built["x"]) == len(built["y"]) == len(built["group"]) > 400
    assert (np.bincount(built["group"]) <= 94).all()


def test_the_same_bytes_every_time_and_apart_from_other_fonts(built, paths):
    assert content_hash(glyph.build(paths)) == content_hash(built)
    alone = glyph.build(paths[3:4])
    assert np.array_equal(alone["x"], built["x"][built["group"] == 3])


def test_colour_says_nothing_about_the_class(built):
    mean = built["x"].mean((2, 3))
    spread = [mean[built["y"] == label].mean() for label in range(20)]
    assert mean.std() > 30
    assert np.std(spread) < mean.std() / 2


def test_figure_and_ground_contrast():
    pairs = np.stack([glyph._colours(np.random.default_rng(seed)) for seed in range(200)])
    assert (abs((pairs[:, 0] - pairs[:, 1]).mean(1)) > 55).all()


def test_what_is_no_font_is_left_out(tmp_path, paths):
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    shutil.copy(paths[0], tmp_path)
    arrays = glyph.build(glyph.font_files(tmp_path))
    assert len(set(arrays["group"].tolist())) == 1


def test_progress_counts_faces(paths):
    seen = []
    glyph.build(paths[:2], lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_a_folder_of_own_fonts_is_split_by_face_and_cached(tmp_path, paths, monkeypatch):
    for path in paths:
        shutil.copy(path, tmp_path)
    stream = load_stream("glyph-94", root=tmp_path, experiences=4)
    assert stream.input_shape == (3, 32, 32)
    assert stream.meta["test_set"] == "held-out groups"
    assert str(tmp_path) in stream.meta["license"]
    monkeypatch.setattr(glyph, "build", lambda *args: pytest.fail("not cached"))
    again = load_stream("glyph-94", root=tmp_path, experiences=4)
    assert again.meta["content_hash"] == stream.meta["content_hash"]


def test_a_folder_without_usable_fonts(tmp_path):
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    with pytest.raises(BadInputError, match="none of the fonts"):
        load_stream("glyph-94", root=tmp_path)
