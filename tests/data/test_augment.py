"""Random changes of training images: exact where they are copies, bounded where they resample."""

from __future__ import annotations

import pytest
import torch

from carousel.data import ToModelInput, load_stream, to_benchmark
from carousel.data.augment import AUGMENTATIONS, Augmented, augment
from carousel.errors import BadInputError

REAL = [how for how in AUGMENTATIONS if how != "none"]


def images(count=64, shape=(3, 32, 32), seed=0, dtype=torch.uint8):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(1, 256, (count, *shape), generator=rng)
    return x.to(dtype)


@pytest.mark.parametrize("how", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (2, 5, 9), (1, 1, 1)])
def test_shape_and_dtype_stay_and_the_input_is_not_touched(how, dtype, shape):
    x = images(6, shape, dtype=dtype)
    before = x.clone()
    out = augment(x, how)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert torch.equal(x, before)
    assert augment(x[:0], how).shape == (0, *shape)


@pytest.mark.parametrize("how", REAL)
def test_the_global_seed_repeats_it_and_samples_differ_from_each_other(how):
    x = images(1).repeat(32, 1, 1, 1)
    torch.manual_seed(1)
    first = augment(x, how)
    second = augment(x, how)
    torch.manual_seed(1)
    assert torch.equal(augment(x, how), first)
    assert not torch.equal(second, first)
    assert len({sample.numpy().tobytes() for sample in first}) > 20


def test_none_draws_no_random_number():
    x = images(4)
    state = torch.get_rng_state()
    assert augment(x, "none") is x
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("how", "mirrors"), [("crop", (False,)), ("crop-flip", (False, True))])
@pytest.mark.parametrize(("side", "pad"), [(32, 4), (64, 4), (8, 1), (4, 0)])
def test_a_crop_is_a_window_of_the_padded_image(how, mirrors, side, pad):
    x = images(200, (2, side, side))
    padded = torch.nn.functional.pad(x, (pad,) * 4)
    found = set()
    for sample, wide in zip(augment(x, how), padded, strict=True):
        windows = [
            (top, left, mirrored)
            for top in range(2 * pad + 1)
            for left in range(2 * pad + 1)
            for mirrored in mirrors
            if torch.equal(
                sample.flip(2) if mirrored else sample,
                wide[:, top : top + side, left : left + side],
            )
        ]
        assert len(windows) == 1
        found.add(windows[0])
    tops, lefts, flips = (set(values) for values in zip(*found, strict=True))
    assert tops == lefts == set(range(2 * pad + 1))
    assert flips == set(mirrors)


def test_an_imagenet_crop_of_a_ramp_is_a_piece_of_the_ramp():
    side = 64
    ramp = torch.linspace(0.1, 1, side).repeat(400, 1, side, 1)
    out = augment(ramp, "imagenet")[:, 0]
    assert torch.allclose(out, out[:, :1].expand_as(out), atol=1e-5)  # rows stay alike
    width = (out[:, 0, -1] - out[:, 0, 0]) / out.mean((1, 2))
    assert 0.45 < float((width > 0).float().mean()) < 0.55  # mirrored or not
    whole = (ramp[0, 0, 0, -1] - ramp[0, 0, 0, 0]) / ramp.mean()
    assert float(width.abs().max()) > 0.6 * float(whole)
    assert float(width.abs().min()) < 0.35 * float(whole)


def test_brightness_stays_within_its_bounds_and_does_not_wrap_around():
    flat = torch.full((500, 3, 8, 8), 100, dtype=torch.uint8)
    levels = augment(flat, "imagenet").flatten(1)
    assert torch.equal(levels.min(1).values, levels.max(1).values)
    levels = levels[:, 0].int()
    assert 75 <= int(levels.min()) < 80
    assert 120 < int(levels.max()) <= 125
    white = augment(torch.full((200, 1, 8, 8), 255, dtype=torch.uint8), "imagenet")
    assert int(white.min()) >= 191


def test_the_transform_of_training_takes_batches_and_single_samples():
    plain = ToModelInput(mean=(0.5,), std=(0.25,))
    transform = Augmented("crop-flip", plain)
    x = images(8, (1, 8, 8))
    torch.manual_seed(3)
    batch = transform(x)
    torch.manual_seed(3)
    assert torch.equal(batch, plain(augment(x, "crop-flip")))
    assert transform(x[0]).shape == (1, 8, 8)
    assert transform.batched


def test_a_benchmark_changes_training_samples_only():
    stream = load_stream("split-digits", experiences=2, limit=20)
    benchmark = to_benchmark(stream, augment="crop")
    data, split = benchmark.train_stream[0].dataset, stream.train[0]
    plain = stream.transform(split.x)
    torch.manual_seed(0)
    trained = torch.stack([data.train()[row][0] for row in range(len(data))])
    assert not torch.equal(trained, plain)
    assert torch.equal(torch.stack([data.eval()[row][0] for row in range(len(data))]), plain)
    tested = benchmark.test_stream[0].dataset
    for group in (tested.train(), tested.eval()):
        assert torch.equal(group[0][0], stream.transform(stream.test[0].x[0]))


def test_bad_input_says_what_to_do():
    with pytest.raises(BadInputError, match="use one of none, crop, crop-flip, imagenet"):
        augment(images(2), "flip")
    with pytest.raises(BadInputError, match='no images: use augment="none"'):
        augment(torch.zeros(4, 10), "crop")
