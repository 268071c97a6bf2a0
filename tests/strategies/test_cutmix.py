"""CutMix: the box, the area that is left, and the loss against both labels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from carousel.errors import BadInputError
from carousel.strategies.cutmix import CutMix, Mixed, cut_box, mixed_loss


class At:
    """A generator that answers what it is told."""

    def __init__(self, *integers):
        self.answers = list(integers)

    def integers(self, length):
        return self.answers.pop(0)


def test_a_box_by_hand():
    """A quarter of 8 x 12 has sides 4 and 6; one about row 4 and column 2 loses a column."""
    rows, columns = cut_box(8, 12, 0.25, At(4, 2))
    assert (rows, columns) == (slice(2, 6), slice(0, 5))
    assert cut_box(8, 12, 0.25, At(7, 11)) == (slice(5, 8), slice(8, 12))
    assert cut_box(8, 12, 0.0, At(3, 3)) == (slice(3, 3), slice(3, 3))
    assert cut_box(8, 12, 1.0, At(4, 6)) == (slice(0, 8), slice(0, 12))


def test_the_loss_by_hand():
    logits = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    labels, mixed = torch.tensor([0, 1]), Mixed(torch.zeros(2), torch.tensor([1, 0]), 0.75)
    e = np.exp
    own = [-np.log(e(2) / (e(2) + 1)), -np.log(e(3) / (e(1) + e(3)))]
    other = [-np.log(1 / (e(2) + 1)), -np.log(e(1) / (e(1) + e(3)))]
    expected = 0.75 * np.mean(own) + 0.25 * np.mean(other)
    assert mixed_loss(cross_entropy, logits, labels, mixed).item() == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 9), width=st.integers(1, 9), rows=st.integers(1, 5),
    seed=st.integers(0, 10**6), alpha=st.floats(0.1, 4),
)  # fmt: skip
def test_each_pixel_is_its_own_or_the_partners(height, width, rows, seed, alpha):
    """The share of pixels that are a sample's own is the weight of its label."""
    x = torch.arange(rows * 2.0).reshape(rows, 2, 1, 1).expand(rows, 2, height, width).clone()
    before = x.clone()
    mixed = CutMix(1.0, alpha, seed=seed)(x)
    assert torch.equal(x, before)
    assert sorted(mixed.partner.tolist()) == list(range(rows))
    own = mixed.x == x
    foreign = mixed.x == x[mixed.partner]
    assert (own | foreign).all()
    for row in range(rows):
        if mixed.partner[row] != row:
            assert own[row].float().mean().item() == pytest.approx(mixed.kept)


def test_area_left_and_how_often():
    """alpha 1: the box covers a uniform share; cut at the edges it covers less. p of the steps."""
    cutmix = CutMix(0.3, 1.0, seed=0)
    x = torch.zeros(2, 1, 32, 32)
    kept = [mixed.kept for mixed in (cutmix(x) for _ in range(4000)) if mixed is not None]
    assert len(kept) / 4000 == pytest.approx(0.3, abs=0.04)
    # E[share of a side that is inside] for side s is s (1 - s / 4); squared and averaged over
    # s = sqrt(u): the integral of u (1 - sqrt(u) / 4) ** 2 is 1/2 - 1/5 + 1/48
    assert np.mean(kept) == pytest.approx(1 - (1 / 2 - 1 / 5 + 1 / 48), abs=0.04)


def test_its_chance_is_its_own_and_goes_on_from_a_state():
    x = torch.rand(4, 1, 6, 6)
    cutmix = CutMix(0.5, 1.0, seed=3)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    _ = [cutmix(x) for _ in range(5)]
    again = CutMix(0.5, 1.0, seed=4)
    again.load_state_dict(cutmix.state_dict())
    for _ in range(10):
        a, b = cutmix(x), again(x)
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a.x, b.x)
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_input():
    with pytest.raises(BadInputError, match=r"cutmix_p is 1\.5"):
        CutMix(1.5, 1.0, seed=0)
    with pytest.raises(BadInputError, match="cutmix_alpha is 0"):
        CutMix(0.5, 0, seed=0)
    with pytest.raises(BadInputError, match=r"shape \(7,\).*cutmix_p=0"):
        CutMix(0.5, 1.0, seed=0)(torch.zeros(2, 7))
    assert CutMix(0, 1.0, seed=0)(torch.zeros(2, 7)) is None
