import numpy as np
import pytest
import torch

from carousel.data import Stream, load_stream, online
from carousel.errors import BadInputError


def test_sizes_differ_by_at_most_one_class_and_labels_keep_their_meaning():
    stream = load_stream("split-digits", experiences=3)
    assert sorted(len(split.classes) for split in stream.train) == [3, 3, 4]
    assert sorted(stream.class_order) == list(range(10))
    assert stream.class_names == tuple("0123456789")
    for split, tested in zip(stream.train, stream.test, strict=True):
        assert set(split.y.tolist()) == set(tested.y.tolist()) == set(split.classes)
        assert split.classes == tested.classes


def test_class_order_is_the_order_of_arrival():
    stream = load_stream("split-digits", experiences=10, seed=3)
    assert tuple(split.classes[0] for split in stream.train) == stream.class_order
    assert stream.class_order != tuple(range(10))


def test_the_class_order_follows_seed_and_the_test_set_does_not():
    one, same, two = (load_stream("split-digits", seed=seed) for seed in (1, 1, 2))
    assert one.class_order == same.class_order != two.class_order
    held = [sorted(x.numpy().tobytes() for s in stream.test for x in s.x) for stream in (one, two)]
    assert held[0] == held[1]


def test_raw_pixels_are_stored_and_transformed_in_batches():
    stream = load_stream("split-digits", normalize=True)
    x = torch.cat([split.x for split in stream.train])
    assert x.dtype == torch.uint8
    ready = stream.transform(x)
    assert ready.dtype == torch.float32
    assert abs(float(ready.mean())) < 1e-3
    assert abs(float(ready.std()) - 1) < 1e-2


def test_limit_caps_training_and_test_samples_of_each_class():
    stream = load_stream("split-digits", limit=7)
    for split in (*stream.train, *stream.test):
        assert np.bincount(split.y.numpy()).max() <= 7
        assert len(split) == 7 * len(split.classes)


def test_online_portions_hold_every_sample_once_and_know_their_bounds():
    x = np.arange(60, dtype=np.float32)[:, None].repeat(4, 1)
    stream = Stream.from_arrays(x, np.arange(60) % 6, experiences=3)
    parts = list(online(stream, 8))
    values = torch.cat([part.split.x[:, 0, 0, 0] for part in parts])
    assert sorted(values.tolist()) == sorted(
        v for split in stream.train for v in split.x[:, 0, 0, 0].tolist()
    )
    for task in range(3):
        mine = [part for part in parts if part.split.task == task]
        assert [part.is_first for part in mine] == [True, False]
        assert [part.is_last for part in mine] == [False, True]
        assert [len(part.split) for part in mine] == [8, 8]


def test_online_order_follows_its_seed():
    stream = load_stream("split-digits", limit=20)
    first, again, natural = (
        torch.cat([part.split.x for part in online(stream, 10, seed=seed)]) for seed in (0, 0, None)
    )
    assert torch.equal(first, again)
    assert torch.equal(natural, torch.cat([split.x for split in stream.train]))
    assert not torch.equal(first, natural)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"batch_size": 0}, "batch_size is 0"), ({"batch_size": 4, "seed": -1}, "seed is -1")],
)
def test_online_refuses_bad_arguments(arguments, words):

    with pytest.raises(BadInputError, match=words):
        next(online(load_stream("split-digits", limit=2), **arguments))


class Pairs(torch.utils.data.Dataset):
    """A data set without targets, as users write them."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, row):
        return self.samples[row]


def test_any_data_set_of_pairs_becomes_a_stream():
    samples = [(torch.full((3, 4, 4), row / 60), 5 + row % 2) for row in range(60)]
    stream = Stream.from_dataset(Pairs(samples), experiences=2, name="mine")
    assert stream.class_names == ("5", "6")
    assert stream.input_shape == (3, 4, 4)
    assert sum(len(split) for split in (*stream.train, *stream.test)) == 60


def test_a_data_set_of_images_with_a_test_set_and_extra_fields():
    from PIL import Image

    train = [
        (Image.new("RGB", (6, 5), (row, 0, 0)), torch.tensor(row % 2), "x") for row in range(8)
    ]
    stream = Stream.from_dataset(Pairs(train), test=Pairs(train[:2]), experiences=2)
    assert stream.input_shape == (3, 5, 6)
    assert [len(split) for split in stream.train] == [4, 4]
    assert [len(split) for split in stream.test] == [1, 1]
    assert stream.meta["test_set"] == "given by the source"


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "is empty"),
        ([(torch.zeros(2, 2), 0), (torch.zeros(2, 3), 1)], r"dataset\[1\] is"),
        ([torch.zeros(2, 2)], "not an"),
        ([(torch.zeros(2, 2), 0.5)] * 4, "dtype float"),
        ([(torch.zeros(2, 2), torch.eye(3)[0])] * 4, "one label a sample"),
    ],
)
def test_bad_data_sets(samples, words):
    with pytest.raises(BadInputError, match=words):
        Stream.from_dataset(Pairs(samples))


def test_an_iterable_data_set_is_refused():
    with pytest.raises(BadInputError, match="no length"):
        Stream.from_dataset(iter([(0, 0)]))
