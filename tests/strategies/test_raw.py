"""Raw samples: found through any nesting, before augmentation, with the labels trained on."""

import warnings

import numpy as np
import pytest
import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, as_classification_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from carousel.errors import BadInputError
from carousel.strategies import raw
from carousel.strategies.raw import raw_source


def numbered(start, count):
    """Samples whose pixels and label are their number."""
    number = torch.arange(start, start + count)
    return TensorDataset(number[:, None, None].expand(-1, 2, 2).to(torch.uint8), number)


class Items(Dataset):
    """(x, y) pairs that only come one by one."""

    def __init__(self, count, make, transform=None):
        self.make, self.transform, self.count = make, transform, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        x = self.make(i)
        return (x if self.transform is None else self.transform(x)), i


def rows_of(source):
    return source.rows(torch.arange(len(source)))[:, 0, 0].tolist()


def test_tensors_keep_their_dtype_and_order(digits):
    x, y = digits
    source = raw_source(TensorDataset(x, y))
    rows = torch.tensor([5, 0, 599])
    assert source.tensor_backed
    assert torch.equal(source.rows(rows), x[rows])
    assert source.rows(rows).dtype == torch.uint8
    assert torch.equal(source.labels, y)
    assert not source.carries_tasks


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_nesting_gives_what_the_data_set_gives(data):
    """Subsets and concatenations of torch and Avalanche, in any order."""
    pool = [numbered(10 * i, data.draw(st.integers(1, 5))) for i in range(3)]
    for _ in range(data.draw(st.integers(1, 4))):
        one, other = (data.draw(st.sampled_from(pool)) for _ in range(2))
        some = data.draw(st.lists(st.integers(0, len(one) - 1), min_size=1, max_size=6))
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            pool.append(Subset(one, some))
        elif kind == 1:
            pool.append(ConcatDataset([one, other]))
        elif kind == 2:
            pool.append(AvalancheDataset([one], indices=some))
        else:
            pool.append(AvalancheDataset([one, other], transform_groups=groups(lambda x: x)))
    dataset = pool[-1]
    expected = [int(dataset[i][1]) for i in range(len(dataset))]
    source = raw_source(dataset)
    assert source.labels.tolist() == expected
    assert rows_of(source) == expected
    assert source.tensor_backed
    back = torch.arange(len(source)).flip(0)
    assert source.rows(back)[:, 0, 0].tolist() == expected[::-1]


def groups(x, y=None):
    return {"train": (x, y), "eval": (x, y)}


def test_augmentation_is_left_off_and_given_for_replay():
    def double(x):
        return x * 2

    source = raw_source(AvalancheDataset([numbered(0, 4)], transform_groups=groups(double)))
    assert rows_of(source) == [0, 1, 2, 3]
    assert source.transforms == (double,)
    assert source.tensor_backed


def test_frozen_transforms_are_part_of_the_data():
    """A permutation that makes an experience must not be replaced by a later experience's."""
    frozen = AvalancheDataset([numbered(0, 4)], transform_groups=groups(lambda x: x + 100))
    dataset = AvalancheDataset(
        [frozen.freeze_transforms()], transform_groups=groups(lambda x: x * 2)
    )
    source = raw_source(dataset)
    assert rows_of(source) == [100, 101, 102, 103]
    assert len(source.transforms) == 1
    assert not source.tensor_backed


def test_labels_are_those_after_target_transforms():
    dataset = AvalancheDataset(
        [numbered(0, 3)], transform_groups=groups(None, lambda y: 10 * int(y))
    )
    source = raw_source(dataset)
    assert source.labels.tolist() == [0, 10, 20]
    assert source.transforms == ()
    assert source.tensor_backed


def test_both_families_agree(helpers):
    for benchmark in (helpers.new_family(helpers.ToFloat()), helpers.old_family(helpers.ToFloat())):
        for experience in benchmark.train_stream:
            source = raw_source(experience.dataset)
            shown = [experience.dataset[i] for i in range(len(source))]
            assert source.labels.tolist() == [int(item[1]) for item in shown]
            expected = torch.stack([item[0] for item in shown])
            assert torch.equal(source.rows(torch.arange(len(source))).float() / 255, expected)
            assert source.carries_tasks == (len(shown[0]) == 3)


def test_task_labels_are_found(helpers):
    stream = helpers.old_family(task_labels=True).train_stream
    assert [set(raw_source(e.dataset).tasks.tolist()) for e in stream] == [{i} for i in range(5)]


def test_more_attributes_in_a_mini_batch_rule_the_fast_path_out():
    extra = DataAttribute([0.5] * 3, "logits", use_in_getitem=True)
    source = raw_source(AvalancheDataset([numbered(0, 3)], data_attributes=[extra]))
    assert not source.tensor_backed
    assert rows_of(source) == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda i: torch.full((3, 3), i, dtype=torch.uint8), "tensor"),
        (lambda i: np.full((3, 3), i, np.uint8), "array"),
        (lambda i: Image.new("L", (3, 3), i), "image"),
    ],
)
def test_items_are_read_one_by_one(make, kind):
    source = raw_source(Items(5, make))
    assert source.kind == kind
    assert not source.tensor_backed
    assert source.labels.tolist() == [0, 1, 2, 3, 4]
    rows = source.rows(torch.tensor([3, 1]))
    assert rows.dtype == torch.uint8
    assert rows[:, 0, 0].tolist() == [3, 1]
    assert source.rows(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 3)


def test_a_subclass_of_tensor_dataset_is_not_trusted():
    class Noisy(TensorDataset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x + 1, y

    data = Noisy(*numbered(0, 3).tensors)
    source = raw_source(data)
    assert not source.tensor_backed
    assert rows_of(source) == [1, 2, 3]


def test_baked_transforms_are_warned_about_once():
    raw._warned_about.clear()
    baked = Items(3, lambda i: torch.full((2, 2), i), transform=lambda x: x + 1)
    with pytest.warns(UserWarning, match="transforms its samples by itself"):
        source = raw_source(baked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raw_source(baked)
    assert rows_of(source) == [1, 2, 3]


def test_shapes_that_differ_are_refused():
    source = raw_source(Items(3, lambda i: torch.zeros(2 + i, 2)))
    with pytest.raises(BadInputError, match="shapes"):
        source.rows(torch.tensor([0, 1]))


def test_empty_and_unlabelled_data_are_refused():
    with pytest.raises(BadInputError, match="no samples"):
        raw_source(TensorDataset(torch.zeros(0, 2), torch.zeros(0)))
    with pytest.raises(BadInputError, match="labels are"):
        raw_source(TensorDataset(torch.zeros(3, 2), torch.rand(3)))


def test_batches_cover_every_row_once():
    source = raw_source(as_classification_dataset(labelled(numbered(0, 7))))
    parts = list(source.batches(3))
    assert torch.cat([rows for rows, _ in parts]).tolist() == list(range(7))
    assert [len(x) for _, x in parts] == [3, 3, 1]


def labelled(data):
    data.targets = data.tensors[1].tolist()
    return data
