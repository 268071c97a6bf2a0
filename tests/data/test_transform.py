import pickle

import pytest
import torch

from carousel.data import ToModelInput


def test_bytes_become_floats_and_floats_stay():
    x = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    assert torch.equal(ToModelInput()(x), x.float() / 255)
    floats = torch.randn(5, 7)
    assert torch.equal(ToModelInput()(floats), floats)


@pytest.mark.parametrize("shape", [(9000, 3, 4, 5), (9000, 1, 4, 4), (9000, 6, 1, 1)])
def test_normalising(shape):
    x = torch.randint(0, 200, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    ready = ToModelInput.normalizing(x)(x)
    axes = (0, 2, 3)
    assert ready.shape == x.shape
    assert torch.allclose(ready.mean(axes), torch.zeros(shape[1]), atol=1e-3)
    assert torch.allclose(ready.std(axes), torch.ones(shape[1]), atol=1e-3)


def test_a_constant_channel_stays_finite():
    x = torch.full((4, 1, 2, 2), 7, dtype=torch.uint8)
    assert torch.isfinite(ToModelInput.normalizing(x)(x)).all()


def test_one_sample_is_transformed_as_in_a_batch():
    x = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    transform = ToModelInput.normalizing(x)
    assert torch.equal(transform(x)[2], transform(x[2]))


def test_it_travels():
    transform = ToModelInput((0.5,), (0.25,))
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert transform.batched
