"""Perturbations: each operation by hand, layouts, and what is refused."""

import numpy as np
import pytest
import torch

from carousel.errors import BadInputError
from carousel.strategies import image_ops as ops
from carousel.strategies.perturb import RandomPerturbation, check_images

ROW = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]).reshape(1, 1, 1, 6).expand(1, 1, 6, 6)


def pixelwise(operation, x, level, centre=(0.5, 0.5)):
    return operation(x, torch.full((len(x), 1, 1, 1), level), torch.tensor([centre]))


def moved(operation, x, level):
    count = len(x)
    zero = torch.zeros(count, dtype=torch.int64)
    return ops.warp(x, (operation,), zero, torch.full((count,), level))


def close(a, b):
    return torch.allclose(a, torch.as_tensor(b), atol=1e-5)


def test_light_by_hand():
    assert close(pixelwise(ops.brightness, ROW, -0.5)[0, 0, 0], ROW[0, 0, 0] * 0.55)
    brighter = torch.tensor([0, 0.38, 0.76, 1, 1, 1])
    assert close(pixelwise(ops.brightness, ROW, 1.0)[0, 0, 0], brighter)
    assert close(pixelwise(ops.contrast, ROW, -1.0)[0, 0, 0], 0.5 + 0.1 * (ROW[0, 0, 0] - 0.5))
    # the slope is what it was within the row; at its ends a pixel is drawn to its neighbour
    assert close(pixelwise(ops.sharpness, ROW, -1.0)[0, 0, 0, 1:5], ROW[0, 0, 0, 1:5])
    assert close(pixelwise(ops.sharpness, ROW, -1.0)[0, 0, 0, 0], 0.09)
    solar = torch.tensor([0, 0.2, 0.4, 0.4, 0.2, 0.0])
    assert close(pixelwise(ops.solarize, ROW, 0.5)[0, 0, 0], solar)
    steps = torch.tensor([0, 48, 96, 144, 192, 240]) / 255
    assert close(pixelwise(ops.posterize, ROW, 1.0)[0, 0, 0], steps)


def test_colour_by_hand():
    colour = torch.tensor([0.9, 0.3, 0.0]).reshape(1, 3, 1, 1)
    assert close(pixelwise(ops.saturation, colour, -1.0).flatten(), [0.45, 0.39, 0.36])


def test_a_box_is_cut_out():
    """Level 1 cuts out half the height and width, less where the image ends."""
    ones = torch.ones(1, 2, 8, 8)
    cut = pixelwise(ops.cut_out, ones, 1.0)
    assert (cut[:, :, 2:6, 2:6] == 0).all()
    assert cut.sum() == 2 * (64 - 16)
    assert pixelwise(ops.cut_out, ones, 1.0, (0.0, 1.0)).sum() == 2 * (64 - 4)


def test_movements_by_hand():
    """A level of 1/2 shifts six pixels by one; towards the left and the top."""
    image = torch.arange(36.0).reshape(1, 1, 6, 6) / 36
    assert close(moved(ops.shift_x, image, 0.5)[..., :5], image[..., 1:])
    assert close(moved(ops.shift_x, image, 0.5)[..., 5], 0.0)
    assert close(moved(ops.shift_y, image, -0.5)[..., 1:, :], image[..., :5, :])
    assert close(moved(ops.rotate, image, 0.0), image)
    dot = torch.zeros(1, 1, 6, 6)
    dot[..., 2:4, 2:4] = 1
    smaller = moved(ops.shrink, torch.ones(1, 1, 6, 6), 1.0)
    assert close(smaller[0, 0, 3], [0.0, 1, 1, 1, 1, 0])
    # about the middle nothing is lost
    for operation in (ops.rotate, ops.shear_x, ops.shear_y):
        assert moved(operation, dot, 0.7).sum().item() == pytest.approx(4, rel=0.05)
        assert not close(moved(operation, ROW, 0.7), ROW)


def test_rotation_keeps_lengths_in_wide_images():
    """A bar 4 high in 8 x 24 pixels is as long when it has turned."""
    bar = torch.zeros(1, 1, 8, 24)
    bar[..., 2:6, 11:13] = 1
    turned = moved(ops.rotate, bar, 1.0)[0, 0]
    assert turned.sum().item() == pytest.approx(8, rel=0.05)
    rows, columns = turned.nonzero().unbind(1)
    weight = turned[rows, columns]
    spread = [((v.float() - v.float().mul(weight).sum() / 8) ** 2 * weight).sum() / 8
              for v in (rows, columns)]  # fmt: skip
    # 4 rows and 2 columns have the variances 1.25 and 0.25; interpolation adds up to 1/3
    assert 1.5 < sum(spread).item() < 1.9


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 8, 8), torch.uint8), ((3, 8, 8), torch.uint8), ((8, 8), torch.uint8),
        ((8, 10, 3), torch.uint8), ((8, 10, 1), torch.float32), ((3, 8, 8), torch.float32),
        ((1, 1, 1), torch.float64),
    ],
)  # fmt: skip
def test_layouts_stay(shape, dtype):
    rng = np.random.default_rng(0)
    x = (torch.rand(40, *shape) * 255).to(dtype)
    perturbed = RandomPerturbation()(x, rng)
    assert (perturbed.shape, perturbed.dtype) == (x.shape, x.dtype)
    assert perturbed.max() <= (255 if dtype == torch.uint8 else x.max())
    assert perturbed.min() >= (0 if dtype == torch.uint8 else x.min())
    changed = (perturbed != x).flatten(1).any(1)
    assert np.prod(shape) == 1 or changed.float().mean() > 0.8


def test_channels_last_is_the_same_perturbation():
    x = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    first = RandomPerturbation()(x, np.random.default_rng(5))
    last = RandomPerturbation()(x.permute(0, 2, 3, 1), np.random.default_rng(5))
    assert torch.equal(last.permute(0, 3, 1, 2), first)


def test_strength():
    x = torch.randint(0, 256, (200, 1, 12, 12), dtype=torch.uint8)

    def change(strength):
        perturbed = RandomPerturbation(strength=strength)(x, np.random.default_rng(0))
        return (perturbed.float() - x.float()).abs().mean().item()

    assert change(0) < 1
    assert 5 < change(0.2) < change(0.6) < change(1.0)


def test_copies_differ_and_repeat_with_a_seed():
    x = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8)
    rng, same = np.random.default_rng(1), np.random.default_rng(1)
    first = RandomPerturbation()(x, rng)
    assert torch.equal(first, RandomPerturbation()(x, same))
    assert not torch.equal(first, RandomPerturbation()(x, rng))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((7,), torch.float32), ((4, 8, 8), torch.uint8), ((8, 8), torch.float32),
     ((1, 8, 8), torch.int64), ((2, 3, 8, 8), torch.uint8)],
)  # fmt: skip
def test_other_data_is_refused(shape, dtype):
    with pytest.raises(BadInputError, match=r"no images.*perturb="):
        check_images(shape, dtype)


@pytest.mark.parametrize(
    ("options", "match"), [({"operations": 0}, "operations is 0"), ({"strength": 2}, "strength is")]
)
def test_bad_input(options, match):
    with pytest.raises(BadInputError, match=match):
        RandomPerturbation(**options)
