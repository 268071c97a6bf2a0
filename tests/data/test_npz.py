import numpy as np
import pytest

from carousel.data import load_dataset, load_stream
from carousel.errors import BadInputError

X, Y = np.zeros((24, 8, 8), np.uint8), np.arange(24) % 4


def written(tmp_path, **arrays):
    np.savez(tmp_path / "mine.npz", **arrays)
    return f"npz:{tmp_path / 'mine.npz'}"


def test_two_arrays_are_enough(tmp_path):
    stream = load_stream(written(tmp_path, x=X, y=Y), experiences=2)
    assert stream.name == "mine"
    assert sum(len(split) for split in (*stream.train, *stream.test)) == 24


def test_groups_test_set_and_names(tmp_path):
    name = written(
        tmp_path,
        x=X,
        y=Y,
        group=Y,
        x_test=X[:4],
        y_test=Y[:4],
        group_test=Y[:4],
        class_names=list("abcd"),
    )
    data = load_dataset(name)
    assert data.class_names == tuple("abcd")
    assert len(load_stream(name, scenario="domain").train) == 4


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": X, "y": Y}, "no array 'x'"),
        ({"x": X, "y": Y, "groups": Y}, "unknown array 'groups'"),
        ({"x": X, "y": Y[:-1]}, "24 samples"),
        ({"x": X, "y": np.array([None] * 24)}, "cannot be read"),
        ({"x": X.astype(float) + np.nan, "y": Y}, "NaN"),
    ],
)
def test_bad_arrays(tmp_path, arrays, words):
    with pytest.raises(BadInputError, match=words):
        load_stream(written(tmp_path, **arrays))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"hello"])
def test_bad_files(tmp_path, content):
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(BadInputError, match=r"bad\.npz cannot be read"):
        load_stream(f"npz:{tmp_path / 'bad.npz'}")


def test_a_single_array_is_no_npz(tmp_path):
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(BadInputError, match=r"one\.npy cannot be read"):
        load_stream(f"npz:{tmp_path / 'one.npy'}")


def test_no_file(tmp_path):
    with pytest.raises(BadInputError, match="there is no file"):
        load_stream(f"npz:{tmp_path / 'nothing.npz'}")
