"""Replayed rows on their way into the mini-batch."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.strategies.batch import PerSample, append_labels, append_samples, batch_transform
from carousel.strategies.raw import raw_source


class Source:
    kind = "tensor"

    def __init__(self, *transforms):
        self.transforms = transforms


def test_the_users_transform_wins_and_none_is_needed_for_none(helpers):
    def given(x):
        return x

    assert batch_transform(Source(lambda x: x), given) is given
    assert (
        batch_transform(raw_source(TensorDataset(torch.zeros(1, 2), torch.zeros(1).long())), None)
        is None
    )


def test_batched_transforms_are_called_once_a_batch(helpers):
    shapes = []

    class Spy(helpers.ToFloat):
        def __call__(self, x):
            shapes.append(tuple(x.shape))
            return super().__call__(x)

    transform = batch_transform(Source(Spy(), Spy()), None)
    x = torch.full((3, 1, 2, 2), 255, dtype=torch.uint8)
    assert torch.allclose(transform(x), torch.full((3, 1, 2, 2), 1 / 255))
    assert shapes == [(3, 1, 2, 2)] * 2


def test_foreign_transforms_are_looped_and_their_cost_is_told_once():
    transform = batch_transform(Source(lambda x: x.float() + 1), None)
    assert isinstance(transform, PerSample)
    assert transform(torch.zeros(3, 2)).tolist() == [[1.0, 1.0]] * 3
    with pytest.warns(UserWarning, match="us for every replayed sample"):
        transform(torch.zeros(3000, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transform(torch.zeros(3000, 2))
    assert transform.rows == 6003
    assert transform.seconds > 0


@pytest.mark.parametrize("kind", ["image", "array"])
def test_transforms_get_what_the_data_set_gave(kind):
    seen = []

    def see(x):
        seen.append(type(x))
        return torch.from_numpy(np.array(x)).float()

    out = PerSample((see,), kind)(torch.arange(8, dtype=torch.uint8).view(2, 2, 2))
    assert out.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert all(issubclass(t, Image.Image if kind == "image" else np.ndarray) for t in seen)


@pytest.mark.parametrize("fields", [2, 3])
def test_rows_are_appended_to_every_field(fields):
    stream = [torch.zeros(2, 3), torch.tensor([4, 5]), torch.tensor([1, 1])][:fields]
    append_samples(stream, torch.ones(1, 3))
    append_labels(stream, torch.tensor([9]), torch.tensor([7]))
    assert stream[0].tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert [field.tolist() for field in stream[1:]] == [[4, 5, 9], [1, 1, 7]][: fields - 1]


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2, 4), torch.zeros(2, 3, 1)]
)
def test_rows_that_do_not_look_like_the_stream_are_refused(x):
    with pytest.raises(SchemaMismatchError, match="replayed samples are"):
        append_samples([torch.zeros(2, 3), torch.zeros(2)], x)


def test_other_fields_are_refused():
    with pytest.raises(BadInputError, match="4 fields"):
        append_labels([torch.zeros(1)] * 4, torch.zeros(1), torch.zeros(1))
