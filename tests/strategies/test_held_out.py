"""The validation set: how large, how balanced, and whose."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from carousel.errors import BadInputError
from carousel.strategies.held_out import HeldOut, parse_share, samples_a_class
from carousel.strategies.raw import raw_source

TENTH = Fraction(1, 10)


def source_of(labels, first=0):
    """Samples that are their own ids."""
    x = torch.arange(first, first + len(labels), dtype=torch.float32)[:, None]
    return raw_source(TensorDataset(x, torch.tensor(labels)))


def hold(held_out, labels, first, per_class, seed=0):
    source, ids = source_of(labels, first), np.arange(first, first + len(labels))
    rng = np.random.default_rng(seed)
    held_out.shrink(per_class, rng)
    rows = held_out.choose(ids, source.labels, per_class, rng)
    held_out.take(source, rows, ids)
    return ids[rows.numpy()].tolist()


@pytest.mark.parametrize(
    ("slots", "classes", "expected"),
    [(2000, 10, 20), (2000, 100, 2), (2000, 70, 2), (100, 2, 5), (100, 6, 1), (20, 10, 1)],
)
def test_a_tenth_of_the_memory_and_at_least_one_a_class(slots, classes, expected):
    assert samples_a_class(slots, classes, TENTH) == expected


def test_two_slots_a_class_are_needed():
    with pytest.raises(BadInputError, match="19 slots for 10 classes") as error:
        samples_a_class(19, 10, TENTH)
    assert "memory_size 20" in error.value.fix


@given(st.integers(1, 300), st.integers(2, 20), st.fractions(Fraction(1, 100), Fraction(1, 2)))
def test_the_budget_is_kept(classes, slots_a_class, share):
    slots = classes * slots_a_class
    held = classes * samples_a_class(slots, classes, share)
    assert held <= max(classes, slots * share)
    assert slots - held >= classes


@pytest.mark.parametrize("value", [0, -0.1, 0.51, float("nan"), "0.1", True])
def test_odd_shares_are_refused(value):
    with pytest.raises(BadInputError, match="validation is"):
        parse_share(value)


def test_shares_are_exact():
    assert parse_share(0.1) == TENTH
    assert int(30 * parse_share(0.1)) == 3


def test_balanced_over_all_classes_as_they_come():
    held_out = HeldOut()
    hold(held_out, [0] * 30 + [1] * 50, 0, 5)
    first = set(held_out.ids.tolist())
    assert torch.bincount(held_out.labels).tolist() == [5, 5]
    hold(held_out, [2] * 30 + [3] * 30, 80, 3)
    assert torch.bincount(held_out.labels).tolist() == [3, 3, 3, 3]
    assert set(held_out.ids[held_out.ids < 80].tolist()) < first
    assert held_out.x[:, 0].tolist() == held_out.ids.tolist()


def test_a_class_keeps_half_of_its_samples_for_training():
    held_out = HeldOut()
    assert hold(held_out, [0] * 5 + [1], 0, 9) == sorted(held_out.ids.tolist())
    assert held_out.labels.tolist() == [0, 0]


def test_a_class_that_returns_is_only_topped_up():
    held_out = HeldOut()
    hold(held_out, [0] + [1] * 20, 0, 4)
    before = set(held_out.ids.tolist())
    assert torch.bincount(held_out.labels, minlength=2).tolist() == [0, 4]
    rows = hold(held_out, [0] * 20 + [1] * 20, 100, 4)
    assert torch.bincount(held_out.labels).tolist() == [4, 4]
    assert before < set(held_out.ids.tolist())
    assert set(rows) == set(held_out.ids.tolist()) - before


def test_an_experience_that_comes_again_gives_up_the_same_samples():
    held_out = HeldOut()
    rows = hold(held_out, [0] * 20 + [1] * 20, 0, 4, seed=1)
    assert hold(held_out, [0] * 20 + [1] * 20, 0, 4, seed=2) == rows
    assert len(held_out) == 8


def test_the_choice_and_the_survivors_are_random():
    """Each of 10 samples is held with chance 0.4, and stays with chance 0.2: 5 standard errors."""
    runs, chosen, kept = 800, np.zeros(10), np.zeros(10)
    for seed in range(runs):
        held_out = HeldOut()
        hold(held_out, [0] * 10, 0, 4, seed=seed)
        chosen[held_out.ids] += 1
        held_out.shrink(2, np.random.default_rng(runs + seed))
        kept[held_out.ids] += 1
    for counts, chance in ((chosen, 0.4), (kept, 0.2)):
        assert abs(counts / runs - chance).max() < 5 * (chance * (1 - chance) / runs) ** 0.5


def test_the_samples_are_its_own():
    x = torch.zeros(8, 1)
    source = raw_source(TensorDataset(x, torch.zeros(8, dtype=torch.int64)))
    held_out = HeldOut()
    held_out.take(source, torch.tensor([1, 2]), np.arange(8))
    x += 5
    assert held_out.x.tolist() == [[0.0], [0.0]]


def test_the_state_holds_all():
    held_out, other = HeldOut(), HeldOut()
    other.load_state_dict(held_out.state_dict())
    assert len(other) == 0
    assert other.x is None
    hold(held_out, [0] * 9 + [1] * 9, 0, 3)
    other.load_state_dict(held_out.state_dict())
    held_out.shrink(1, np.random.default_rng(0))
    assert len(other) == 6
    assert other.x[:, 0].tolist() == other.ids.tolist()


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), max_size=6), st.integers(0))
def test_random_streams(experiences, seed):
    """Never more than the quota, never an id twice, payload and label always belong together."""
    held_out, first, label_of = HeldOut(), 0, {}
    for number, labels in enumerate(experiences):
        label_of |= {first + i: label for i, label in enumerate(labels)}
        per_class = samples_a_class(60, len(set(label_of.values())), Fraction(1, 4))
        rows = hold(held_out, labels, first, per_class, seed=(seed, number))
        assert set(rows) <= set(held_out.ids.tolist())
        first += len(labels)
        assert len(set(held_out.ids.tolist())) == len(held_out) <= 15
        if len(held_out):
            assert int(torch.bincount(held_out.labels).max()) <= per_class
            assert held_out.x[:, 0].tolist() == held_out.ids.tolist()
            assert held_out.labels.tolist() == [label_of[i] for i in held_out.ids.tolist()]
