import numpy as np
import pytest

from carousel.data import load_stream
from carousel.data.cache import content_hash

pytest.importorskip("pyfiglet", reason="pyfiglet is not installed (extra: data)")

from carousel.data.source import LoadOptions
from carousel.data.sources import figlet

FONTS = ["standard", "banner", "big", "block", "doom", "slant", "small", "univers"]


@pytest.fixture(scope="module")
def built():
    return figlet.build(FONTS)


def test_images_of_every_character(built):
    assert built["x"].shape[1:] == (28, 28)
    assert built["x"].dtype == np.uint8
    assert built["y"].min() == 0
    assert built["y"].max() == 93
    assert len(built["x"]) == len(built["y"]) == len(built["group"])
    assert (built["x"].reshape(len(built["x"]), -1).max(1) > 0).all()


def test_the_same_bytes_every_time(built):
    assert content_hash(figlet.build(FONTS)) == content_hash(built)


def test_a_font_that_draws_like_an_earlier_one_is_left_out():
    once, twice = figlet.build(["standard"]), figlet.build(["standard", "standard"])
    assert content_hash(once) == content_hash(twice)


def test_lower_case_that_looks_like_upper_case_is_left_out():
    arrays = figlet.build(["banner3", "standard"])
    labels = [set(arrays["y"][arrays["group"] == number] + 33) for number in (0, 1)]
    lower = set(range(ord("a"), ord("z") + 1))
    assert not labels[0] & lower
    assert labels[1] >= lower


def test_thin_lines_are_lighter():
    assert figlet._ink(["#_ ", "$."], "$").tolist() == [[255, 100, 0], [0, 60, 0]]


def test_fonts_of_the_package_only():
    names = figlet.font_names()
    assert len(names) == len(set(names)) > 500
    assert names == sorted(names)


def test_progress_counts_fonts():
    seen = []
    figlet.build(FONTS[:3], lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.filterwarnings("ignore:figlet-94 was built with content")
def test_the_stream_is_split_by_font_and_cached(monkeypatch):
    monkeypatch.setattr(figlet, "font_names", lambda: FONTS)
    stream = load_stream("figlet-94")
    assert len(stream.train) == 10
    assert stream.n_classes == 94
    assert stream.input_shape == (1, 28, 28)
    assert stream.class_names[1] == '"'
    assert stream.meta["test_set"] == "held-out groups"
    monkeypatch.setattr(figlet, "build", lambda *args: pytest.fail("not cached"))
    assert load_stream("figlet-94").meta["content_hash"] == stream.meta["content_hash"]


def test_another_build_than_the_reference_is_told(monkeypatch):
    monkeypatch.setattr(figlet, "font_names", lambda: FONTS[:1])
    with pytest.warns(UserWarning, match="reference build"):
        figlet.load(LoadOptions())
