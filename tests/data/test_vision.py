import hashlib
import pickle
import struct

import numpy as np
import pytest

from carousel.data import list_benchmarks, load_stream
from carousel.errors import DatasetMissingError


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.tobytes())


def test_mnist_from_idx_files(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 28, 28)).astype(np.uint8)
    labels = (np.arange(40) % 10).astype(np.uint8)
    for part, rows in (("train", slice(0, 30)), ("t10k", slice(30, 40))):
        write_idx(tmp_path / "MNIST/raw" / f"{part}-images-idx3-ubyte", pixels[rows])
        write_idx(tmp_path / "MNIST/raw" / f"{part}-labels-idx1-ubyte", labels[rows])
    assert {i.name for i in list_benchmarks(tmp_path) if i.available} >= {"split-mnist"}
    stream = load_stream("split-mnist", root=tmp_path, seed=None)
    assert stream.input_shape == (1, 28, 28)
    assert [len(split) for split in stream.train] == [6] * 5
    assert [len(split) for split in stream.test] == [2] * 5
    assert np.array_equal(stream.test[0].x[0, 0].numpy(), pixels[30])
    assert stream.class_names[0] == "0 - zero"


def test_damaged_mnist_files(tmp_path):
    for part in ("train", "t10k"):
        for what in ("images-idx3", "labels-idx1"):
            path = tmp_path / "MNIST/raw" / f"{part}-{what}-ubyte"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\0\0\x08\x03\0")
    with pytest.raises(DatasetMissingError, match="cannot be read"):
        load_stream("split-mnist", root=tmp_path)


def test_files_are_fetched_only_on_request(tmp_path, monkeypatch):
    from torchvision.datasets import MNIST

    asked = []
    monkeypatch.setattr(MNIST, "download", lambda self: asked.append(self.root))
    with pytest.raises(DatasetMissingError, match="is not on this machine"):
        load_stream("split-mnist", root=tmp_path)
    assert asked == []
    with pytest.raises(DatasetMissingError, match="cannot be read"):
        load_stream("split-mnist", root=tmp_path, download=True)
    assert asked == [str(tmp_path)]


def write_batch(path, rows, key, seed):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, 3072)).astype(np.uint8)
    content = {"data": data, key: (np.arange(rows) % 10).tolist()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_cifar10_from_its_batches(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10

    folder = tmp_path / CIFAR10.base_folder
    names = [name for name, _ in CIFAR10.train_list]
    sums = [(name, write_batch(folder / name, 20, "labels", 1)) for name in names]
    test = [("test_batch", write_batch(folder / "test_batch", 10, "labels", 2))]
    (folder / "batches.meta").write_bytes(
        pickle.dumps({"label_names": [f"kind {number}" for number in range(10)]})
    )
    digest = hashlib.md5((folder / "batches.meta").read_bytes()).hexdigest()
    with pytest.raises(DatasetMissingError, match="cannot be read"):
        load_stream("split-cifar10", root=tmp_path)
    monkeypatch.setattr(CIFAR10, "train_list", sums)
    monkeypatch.setattr(CIFAR10, "test_list", test)
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": digest})
    stream = load_stream("split-cifar10", root=tmp_path)
    assert stream.input_shape == (3, 32, 32)
    assert stream.class_names[3] == "kind 3"
    assert [len(split) for split in (*stream.train, *stream.test)] == [20] * 5 + [2] * 5
