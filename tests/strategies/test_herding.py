"""Herding: by hand, and against a second implementation with sums instead of updates."""

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from carousel.strategies.herding import herd


def test_by_hand():
    """mu = (.7071, .7071): picks the middle; then w = 2 mu - d1 = mu and ties go to the first."""
    x = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    # w0 = mu = d1: pick 1. w1 = mu: pick 1 again, for ever: rows 0 and 2 tie at .7071
    assert herd(x, 3).tolist() == [1, 0, 2]


def test_by_hand_with_more_steps():
    """Three unit vectors at 0, 60 and 90 degrees."""
    angles = torch.deg2rad(torch.tensor([0.0, 60.0, 90.0], dtype=torch.float64))
    x = torch.stack((angles.cos(), angles.sin()), 1)
    # sum (1.5, 1.866), mu = (.6265, .7794), at 51.2 degrees
    # w0.d: .6265 .9882 .7794 -> 1; w1 = 2 mu - d1 = (.7530, .6928): .7530 .9765 .6928 -> 1
    # w2 = 3 mu - 2 d1 = (.8795, .6062): .8795 .9647 .6062 -> 1
    # w3 = (1.0060, .5196): 1.0060 .9530 .5196 -> 0; w4 = (.6325, 1.2990)
    # w4: .6325 1.4412 1.2990 -> 1; w5 = (.7590, 1.2124): 1.4294 1.2124 -> 1 ...
    assert herd(x, 3).tolist() == [1, 0, 2]
    assert herd(x, 1).tolist() == [1]


def naive(features, count):
    """w from scratch each step: w_t = (t + 1) mu - (sum of all picks)."""
    rows = [row / np.linalg.norm(row) for row in features]
    mean = sum(rows) / len(rows)
    mean = mean / np.linalg.norm(mean)
    picked, ranked = [], []
    while len(ranked) < count and len(picked) < max(1000, 10 * count):
        total = sum((rows[i] for i in picked), np.zeros_like(mean))
        scores = np.array([float(((len(picked) + 1) * mean - total) @ row) for row in rows])
        first, second = np.sort(scores)[::-1][:2]
        assume(first - second > 1e-6)  # rounding must not decide
        best = int(np.argmax(scores))
        picked.append(best)
        if best not in ranked:
            ranked.append(best)
        assume(len(picked) < 60)
    return ranked


@given(st.integers(2, 12), st.integers(2, 4), st.integers(0, 10_000), st.data())
def test_as_a_second_implementation(n, d, seed, data):
    features = np.random.default_rng(seed).normal(size=(n, d)) + 0.5
    count = data.draw(st.integers(1, min(n, 4)))
    expected = naive(features, count)
    assert herd(torch.from_numpy(features), count).tolist() == expected


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 100), st.integers(0, 50))
def test_distinct_rows_always(n, d, seed, count):
    x = torch.from_numpy(np.random.default_rng(seed).integers(-1, 2, (n, d)).astype(np.float32))
    order = herd(x, count).tolist()
    assert len(order) == len(set(order)) == min(n, count)
    assert all(0 <= row < n for row in order)


def test_a_smaller_count_is_a_prefix():
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    whole = herd(x, 20)
    for count in range(1, 20):
        assert torch.equal(herd(x, count), whole[:count])


def test_few_picks_point_where_the_class_does():
    """The reason to herd: the normalised mean of ten is nearer than that of ten random ones."""
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) + 1
    rows = torch.nn.functional.normalize(x, dim=1)

    def off(some):
        return 1 - torch.cosine_similarity(rows[some].mean(0), rows.mean(0), dim=0).item()

    rng = np.random.default_rng(0)
    random = [off(torch.from_numpy(rng.permutation(200)[:10])) for _ in range(50)]
    assert off(herd(x, 10)) < np.mean(random) / 3


def test_lengths_do_not_matter():
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)).double()
    scale = torch.arange(1.0, 31.0).double()[:, None]
    assert torch.equal(herd(x * scale, 12), herd(x, 12))
