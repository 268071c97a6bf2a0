import warnings

import numpy as np
import pytest

from carousel.data.cache import cached, content_hash, data_root

KEY = {"builder": 1, "package": "1.0"}


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"x": np.arange(12, dtype=np.uint8).reshape(3, 4), "name": np.array(["a", "bc"])}


@pytest.fixture
def build():
    return Builder()


def stored():
    return sorted((data_root() / "built").iterdir())


def test_built_once_and_read_afterwards(build):
    first, again = cached("set", KEY, build), cached("set", KEY, build)
    assert build.calls == 1
    assert content_hash(first) == content_hash(again)
    assert again["x"].dtype == np.uint8
    assert len(stored()) == 1


def test_another_key_is_another_file(build):
    cached("set", KEY, build)
    cached("set", {**KEY, "package": "1.1"}, build)
    assert build.calls == 2
    assert len(stored()) == 2


@pytest.mark.parametrize("position", [0, 60, 130, -400, -1])
def test_a_flipped_byte_is_never_served(build, position):
    expected = content_hash(cached("set", KEY, build))
    (path,) = stored()
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        served = cached("set", KEY, build)
    assert content_hash(served) == expected


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_damaged_file_is_built_again_with_a_warning(build, content):
    cached("set", KEY, build)
    (path,) = stored()
    path.write_bytes(path.read_bytes()[:-50] if content is None else content)
    with pytest.warns(UserWarning, match=r"damaged: building set again"):
        cached("set", KEY, build)
    assert build.calls == 2
    cached("set", KEY, build)
    assert build.calls == 2


def test_values_that_changed_under_a_valid_archive_are_found(build):
    arrays = cached("set", KEY, build)
    (path,) = stored()
    np.savez(path, **{**arrays, "x": arrays["x"] + 1}, content_hash=content_hash(arrays))
    with pytest.warns(UserWarning, match="damaged"):
        assert content_hash(cached("set", KEY, build)) == content_hash(arrays)


def test_pickled_objects_are_never_loaded(build):
    cached("set", KEY, build)
    (path,) = stored()
    np.savez(path, x=np.array([{"a": 1}], dtype=object), content_hash="0")
    with pytest.warns(UserWarning, match="damaged"):
        cached("set", KEY, build)


def test_a_failed_build_leaves_nothing_behind():
    def fail():
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        cached("set", KEY, fail)
    assert not (data_root() / "built").exists()


def test_a_root_that_cannot_be_written_costs_a_warning(build, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CAROUSEL_DATA", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="set CAROUSEL_DATA"):
        arrays = cached("set", KEY, build)
    assert arrays["x"].shape == (3, 4)


def test_content_hash_sees_names_dtypes_shapes_and_values():
    x = np.arange(4, dtype=np.int16)
    variants = [{"x": x}, {"y": x}, {"x": x.astype("i4")}, {"x": x.reshape(2, 2)}, {"x": x + 1}]
    assert len({content_hash(arrays) for arrays in variants}) == len(variants)
