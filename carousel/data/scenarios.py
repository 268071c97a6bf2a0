"""Cutting a data set into experiences: by class, or by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from carousel.data.dataset import ArrayDataset
from carousel.data.holdout import TEST_FRACTION, Holdout, Pool, hold_out
from carousel.data.orders import class_order as labels_in_order
from carousel.data.split import deal, generator
from carousel.data.stream import Scenario, Split, Stream
from carousel.data.transform import ToModelInput
from carousel.errors import BadInputError

__all__ = ["class_incremental", "domain_incremental", "make_stream"]

Owners = NDArray[np.int64]


def make_stream(
    dataset: ArrayDataset,
    experiences: int | None = None,
    *,
    scenario: Scenario = "class",
    seed: int | None = 0,
    class_order: str | Sequence[int] = "random",
    split_seed: int = 0,
    test_fraction: float = TEST_FRACTION,
    limit: int | None = None,
    normalize: bool = False,
) -> Stream:
    """Cut a data set into experiences.

    Args:
        dataset: what to cut.
        experiences: how many; by default 5, or the number of classes or groups if smaller.
        scenario: "class" (new classes in each) or "domain" (new groups in each).
        seed: order of the classes or groups; None keeps the natural order.
        class_order: of "class" only, in place of a random one; see `load_stream`.
        split_seed: which samples are tested on; apart from `seed`, so that runs with several
            class orders share one test set.
        test_fraction: share held out for testing when the source has no test set of its own.
        limit: at most so many training and so many test samples of each class, for quick runs.
        normalize: `Stream.transform` also normalises each channel, by the training samples.

    Raises:
        BadInputError: a value cannot be used, or an experience would have nothing to test on.
    """
    if scenario not in ("class", "domain"):
        raise BadInputError(
            f"scenario is {scenario!r}",
            fix='give "class" or "domain"; for online learning cut a stream with online()',
        )
    if experiences is None:
        experiences = min(5, dataset.n_classes if scenario == "class" else _n_groups(dataset))
    common: dict[str, Any] = {
        "seed": seed,
        "split_seed": split_seed,
        "test_fraction": test_fraction,
        "limit": limit,
        "normalize": normalize,
    }
    if scenario == "class":
        return class_incremental(dataset, experiences, class_order=class_order, **common)
    if class_order != "random":
        raise BadInputError(
            "class_order is given and the scenario is domain",
            fix="leave class_order out: all classes come in every experience",
        )
    return domain_incremental(dataset, experiences, **common)


def class_incremental(
    dataset: ArrayDataset,
    experiences: int,
    *,
    seed: int | None = 0,
    class_order: str | Sequence[int] = "random",
    split_seed: int = 0,
    test_fraction: float = TEST_FRACTION,
    limit: int | None = None,
    normalize: bool = False,
) -> Stream:
    """Each experience brings classes that no other has; see `make_stream` for the arguments.

    The classes are shuffled by ``numpy.random.default_rng(seed)``, seed 0 included, and dealt out
    in that order, unless `class_order` gives one. When they do not divide, the first experiences
    get one class more.
    """
    given = labels_in_order(class_order, dataset.n_classes)
    held = hold_out(dataset, split_seed, test_fraction).capped(limit, split_seed)
    if given is None:
        hands = deal(np.arange(dataset.n_classes), experiences, seed, "classes")
    else:
        hands = deal(np.array(given), experiences, None, "classes")
    order = tuple(int(label) for hand in hands for label in hand)
    meta = {"scenario": "class", "seed": seed, "split_seed": split_seed}
    owners = _owners(held.train.labels, hands), _owners(held.test.labels, hands)
    return _stream(dataset, held, owners, experiences, order, normalize=normalize, meta=meta)


def domain_incremental(
    dataset: ArrayDataset,
    experiences: int,
    *,
    seed: int | None = 0,
    split_seed: int = 0,
    test_fraction: float = TEST_FRACTION,
    limit: int | None = None,
    normalize: bool = False,
) -> Stream:
    """Each experience brings groups (fonts, people, sites) that no other has.

    Tested are held-out groups, dealt to the experiences as the training groups are, when there
    are enough of them to go round; else held-out samples of each experience's own groups. A
    test set of the source follows its own groups; without groups it is dealt evenly. Arguments
    as in `make_stream`.
    """
    kinds = _n_groups(dataset)
    tested = round(test_fraction * kinds)
    scarce = min(tested, kinds - tested) < experiences
    held = hold_out(dataset, split_seed, test_fraction, within_groups=scarce)
    train_groups, test_groups = _groups(held.train, split_seed), _groups(held.test, split_seed)
    hands = deal(np.unique(train_groups), experiences, seed, "groups to train on")
    test_hands = hands
    if held.test.group is None or not np.isin(test_groups, train_groups).all():
        test_hands = deal(np.unique(test_groups), experiences, seed, "groups to test on")
    held = held.capped(limit, split_seed)
    owners = (
        _owners(_groups(held.train, split_seed), hands),
        _owners(_groups(held.test, split_seed), test_hands),
    )
    meta = {"scenario": "domain", "seed": seed, "split_seed": split_seed}
    order = tuple(range(dataset.n_classes))
    return _stream(dataset, held, owners, experiences, order, normalize=normalize, meta=meta)


def _groups(pool: Pool, seed: int) -> Owners:
    """(k,) groups of a pool; without groups each sample is one, numbered at random."""
    if pool.group is not None:
        return pool.group[pool.rows]
    return generator(seed).permutation(len(pool.y))[pool.rows]


def _stream(
    dataset: ArrayDataset,
    held: Holdout,
    owners: tuple[Owners, Owners],
    experiences: int,
    class_order: tuple[int, ...],
    *,
    normalize: bool,
    meta: Mapping[str, Any],
) -> Stream:
    train = held.train.cut(owners[0], experiences)
    test = held.test.cut(owners[1], experiences)
    for number, (seen, tested) in enumerate(zip(train, test, strict=True)):
        if not len(seen) or not len(tested):
            raise BadInputError(
                f"experience {number} of {dataset.name} would have {len(seen)} training and "
                f"{len(tested)} test samples",
                fix="use fewer experiences, more data or another split_seed",
            )
    transform = ToModelInput()
    if normalize:
        transform = ToModelInput.normalizing(torch.cat([split.x for split in train]))
    return Stream(
        name=dataset.name,
        train=train,
        test=tuple(Split(t.x, t.y, t.task, s.classes) for s, t in zip(train, test, strict=True)),
        n_classes=dataset.n_classes,
        input_shape=dataset.shape,
        class_order=class_order,
        class_names=dataset.class_names,
        transform=transform,
        meta={**dataset.meta, **meta, "experiences": experiences, "test_set": held.how},
    )


def _n_groups(dataset: ArrayDataset) -> int:
    if dataset.group is None:
        raise BadInputError(
            f"{dataset.name} has no groups",
            fix="give the group of every sample, or choose scenario class",
        )
    return len(np.unique(dataset.group))


def _owners(values: Owners, hands: Sequence[Owners]) -> Owners:
    """The experience of each sample, from the hand that holds its class or group."""
    kinds = np.concatenate(hands)
    numbers = np.repeat(np.arange(len(hands)), [len(hand) for hand in hands])
    order = np.argsort(kinds)
    return numbers[order][np.searchsorted(kinds[order], values)]
