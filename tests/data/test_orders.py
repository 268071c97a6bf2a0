"""Class orders of published experiments, and a user's own."""

from __future__ import annotations

import numpy as np
import pytest

from carousel.data import ArrayDataset, make_stream
from carousel.data.orders import CLASS_ORDERS, class_order
from carousel.errors import BadInputError


def dataset(n_classes=6):
    y = np.arange(8 * n_classes) % n_classes
    return ArrayDataset.of(np.zeros((len(y), 2, 2), np.uint8), y, group=np.arange(len(y)) // 12)


@pytest.mark.parametrize("name", CLASS_ORDERS)
def test_a_published_order_names_every_class_once(name):
    assert sorted(CLASS_ORDERS[name]) == list(range(100))


def test_the_published_orders_are_those_of_icarl():
    # the authors of iCaRL shuffled with this seed; the CIFAR-100 list is of their repository
    permuted = np.random.RandomState(1993).permutation(100)
    assert CLASS_ORDERS["icarl-imagenet100"] == tuple(permuted.tolist())
    cifar = CLASS_ORDERS["icarl-cifar100"]
    assert cifar[:4] == (87, 0, 52, 58)
    assert cifar[-4:] == (54, 26, 35, 39)


def test_classes_arrive_in_the_order_given():
    stream = make_stream(dataset(), 3, class_order=[4, 1, 5, 0, 2, 3], seed=7)
    assert stream.class_order == (4, 1, 5, 0, 2, 3)
    assert [split.classes for split in stream.train] == [(1, 4), (0, 5), (2, 3)]
    assert make_stream(dataset(), 2, class_order="sorted").train[0].classes == (0, 1, 2)


def test_random_is_the_order_of_the_seed():
    one, other = (make_stream(dataset(), 3, seed=seed).class_order for seed in (0, 1))
    assert make_stream(dataset(), 3, seed=1, class_order="random").class_order == other != one


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("icarl", "use one of random, sorted, icarl-cifar100"),
        ([0, 1, 1], "each once"),
        ([1, 2, 3], "each once"),
        ([0, 1], "2 labels and the data set 6 classes"),
        ("icarl-cifar100", "100 labels and the data set 6 classes"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(order, words):
    with pytest.raises(BadInputError, match=words):
        class_order(order, 6)


def test_domains_have_no_class_order():
    with pytest.raises(BadInputError, match="leave class_order out"):
        make_stream(dataset(), 2, scenario="domain", class_order="sorted")
