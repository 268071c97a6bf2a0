"""The gates against a brute-force reading of their definitions (acceptance check 1)."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch

from carousel.errors import BadInputError
from carousel.memory.gate import GATES, GateBatch, make_gate, parse_ratio, rows_to_swap

RATIOS = (0, 0.1, 0.2, 0.5, 0.55, 0.8, 1)


def make_batch(rng, rows, classes, ratio, losses=None):
    logits = torch.from_numpy(rng.normal(0, 3, (rows, classes)))
    labels = torch.from_numpy(rng.integers(0, classes, rows))
    return GateBatch(logits, labels, parse_ratio(ratio), np.random.default_rng(1), losses)


def brute_scores(batch):
    """Score of each row as the paper writes it: [g H + (1 - g)(2u - H)] / 2u."""
    logits = batch.logits.numpy()
    weights = np.exp(logits)
    shares = weights / weights.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(shares)).sum(axis=1)
    limit = math.log(logits.shape[1]) or 1.0
    correct = np.array([row.argmax() for row in logits]) == batch.labels.numpy()
    return (np.where(correct, entropy, 2 * limit - entropy) / (2 * limit)).tolist()


def brute_ceil(ratio, rows):
    return math.ceil(Fraction(str(ratio)) * rows)


def lowest(scores, rows, count):
    return sorted(sorted(rows, key=lambda row: scores[row])[:count])


def test_balanced_is_the_definition_on_10_000_batches():
    rng = np.random.default_rng(0)
    for trial in range(10_000):
        rows, classes = int(rng.integers(1, 257)), int(rng.integers(1, 101))
        batch = make_batch(rng, rows, classes, RATIOS[trial % len(RATIOS)])
        check_balanced(batch)


def check_balanced(batch):
    ratio, labels, scores = batch.ratio, batch.labels.tolist(), brute_scores(batch)
    picked = make_gate("balanced")(batch).tolist()
    assert len(set(picked)) == len(picked) == brute_ceil(ratio, len(labels))

    given = Counter(labels[row] for row in picked)
    for label, size in Counter(labels).items():
        exact = ratio * size
        assert given[label] in (math.floor(exact), math.ceil(exact))
        members = [row for row, other in enumerate(labels) if other == label]
        mine = [row for row in picked if labels[row] == label]
        best = lowest(scores, members, given[label])
        # one class has no entropy: all rows tie and any of them may go
        assert mine == best or batch.logits.shape[1] == 1


@pytest.mark.parametrize("name", ["score", "entropy", "loss", "random"])
def test_unstratified_gates_take_the_lowest_of_what_they_rank(name):
    rng = np.random.default_rng(2)
    for trial in range(300):
        batch = make_batch(rng, int(rng.integers(1, 100)), 10, RATIOS[trial % len(RATIOS)])
        picked = make_gate(name)(batch).tolist()
        assert len(set(picked)) == brute_ceil(batch.ratio, len(batch))
        if name != "random":
            values = brute_values(name, batch)
            assert picked == lowest(values, range(len(batch)), len(picked))


def brute_values(name, batch):
    if name == "score":
        return brute_scores(batch)
    logp = batch.logits - batch.logits.logsumexp(1, keepdim=True)
    if name == "entropy":
        return (-(logp.exp() * logp).sum(1)).tolist()
    return (-logp.gather(1, batch.labels[:, None])[:, 0]).tolist()


def test_loss_gate_prefers_the_losses_it_is_given():
    losses = torch.tensor([3.0, 1.0, 2.0, 0.5], dtype=torch.bfloat16, requires_grad=True)
    batch = make_batch(np.random.default_rng(0), 4, 3, 0.5, losses)
    assert make_gate("loss")(batch).tolist() == [1, 3]


def test_size_is_exact_where_floats_are_not():
    assert math.ceil(0.55 * 100) == 56  # what must not happen
    batch = make_batch(np.random.default_rng(0), 100, 5, 0.55)
    assert [len(gate(batch)) for name, gate in GATES.items() if name != "all"] == [55] * 5
    assert rows_to_swap(parse_ratio("0.1"), 30) == 3


@pytest.mark.parametrize("ratio", [1 / 3, 0.1234567890123456, 1e-300, "1/3"])
def test_ratios_of_many_digits_are_exact_on_large_batches(ratio):
    rng = np.random.default_rng(0)
    batch = make_batch(rng, 5000, 3, 1)
    batch.ratio = parse_ratio(ratio)
    check_balanced(batch)


def test_the_rows_missing_to_the_total_fall_on_fractional_classes_uniformly():
    # classes 0 to 3 have 3 rows (1.5 each), class 4 has 2 (1 exactly): 7 in all, 2 of 4 are lucky
    labels = torch.tensor([0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 2)
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(14, 5)))
    rng = np.random.default_rng(5)
    extra = Counter()
    for _ in range(4000):
        picked = make_gate("balanced")(GateBatch(logits, labels, Fraction(1, 2), rng))
        given = Counter(labels[picked].tolist())
        assert given[4] == 1
        extra.update(label for label in range(4) if given[label] == 2)
    assert sum(extra.values()) == 8000
    chi_square = sum((extra[label] - 2000) ** 2 / 2000 for label in range(4))
    assert chi_square < 16.3  # p = 0.001 at 3 degrees of freedom, and draws exclude each other


@pytest.mark.parametrize("name", ["balanced", "score", "entropy", "loss"])
def test_ties_are_broken_by_a_seeded_shuffle(name):
    logits, labels = torch.ones(8, 4), torch.zeros(8, dtype=torch.int64)
    first = tie_counts(name, logits, labels, seed=3)
    assert first == tie_counts(name, logits, labels, seed=3)
    assert min(first.values()) > 400  # 2 of 8 rows, 2000 times: 500 each
    assert len(first) == 8


def tie_counts(name, logits, labels, seed):
    rng, counts = np.random.default_rng(seed), Counter()
    for _ in range(2000):
        counts.update(make_gate(name)(GateBatch(logits, labels, Fraction(1, 4), rng)).tolist())
    return counts


def test_easiest_leave_first_in_the_order_of_the_paper():
    # correct and sure, correct and unsure, wrong and unsure, wrong and sure
    logits = torch.tensor([[9.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 9.0]])
    labels = torch.zeros(4, dtype=torch.int64)
    order = []
    for quarter in (1, 2, 3, 4):
        batch = GateBatch(logits, labels, Fraction(quarter, 4), np.random.default_rng(0))
        order += sorted(set(make_gate("balanced")(batch).tolist()) - set(order))
    assert order == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_dtype_masked_classes_and_graphs(dtype):
    logits = torch.randn(32, 10, dtype=dtype)
    logits[:, 7:] = float("-inf")
    logits.requires_grad_()
    labels = torch.randint(0, 7, (32,), dtype=torch.int32)
    for name in ("balanced", "score", "entropy", "loss"):
        batch = GateBatch(logits, labels, Fraction(1, 2), np.random.default_rng(0))
        assert len(make_gate(name)(batch)) == 16
    unmasked = GateBatch(logits[:, :7], labels, Fraction(1, 2), np.random.default_rng(0))
    masked = GateBatch(logits, labels, Fraction(1, 2), np.random.default_rng(0))
    assert (GATES["entropy"](unmasked) == GATES["entropy"](masked)).all()


def test_a_diverged_model_does_not_stop_the_gate():
    batch = GateBatch(
        torch.full((6, 3), float("nan")),
        torch.zeros(6, dtype=torch.int64),
        Fraction(1, 2),
        np.random.default_rng(0),
    )
    assert len(make_gate("balanced")(batch)) == 3


@pytest.mark.parametrize("name", [name for name in GATES if name != "all"])
def test_empty_batches_and_extreme_ratios(name):
    rng = np.random.default_rng(0)
    assert make_gate(name)(make_batch(rng, 0, 4, 0.5)).tolist() == []
    assert make_gate(name)(make_batch(rng, 5, 4, 0)).tolist() == []
    assert make_gate(name)(make_batch(rng, 5, 4, 1)).tolist() == [0, 1, 2, 3, 4]


def test_all_is_for_ratio_one_only():
    batch = make_batch(np.random.default_rng(0), 5, 4, 1)
    assert make_gate("all", Fraction(1))(batch).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(BadInputError, match=r"gate 'all' with swap_ratio 0\.5"):
        make_gate("all", Fraction(1, 2))
    with pytest.raises(BadInputError, match="gate 'all'"):
        make_gate("all")(make_batch(np.random.default_rng(0), 5, 4, 0.5))


def test_custom_gates_may_answer_with_indices_or_a_mask():
    batch = make_batch(np.random.default_rng(0), 4, 3, 0.5)
    assert make_gate(lambda b: [3, 1])(batch).tolist() == [3, 1]
    assert make_gate(lambda b: b.labels.numpy() >= 0)(batch).tolist() == [0, 1, 2, 3]
    assert make_gate(lambda b: [])(batch).tolist() == []
    assert make_gate(GATES["balanced"]) is GATES["balanced"]


@pytest.mark.parametrize("answer", [[0, 0], [4], [-1], [0.5], [[0], [1]], [True, False]])
def test_a_custom_gate_that_answers_nonsense_is_named(answer):
    batch = make_batch(np.random.default_rng(0), 4, 3, 0.5)
    with pytest.raises(BadInputError, match="the gate answered"):
        make_gate(lambda b: np.array(answer))(batch)


def test_unknown_gate_suggests_the_nearest():
    with pytest.raises(BadInputError, match="did you mean balanced"):
        make_gate("ballanced")
    with pytest.raises(BadInputError, match="use one of balanced, score"):
        make_gate("zzz")


@pytest.mark.parametrize("ratio", [-0.1, 1.01, float("nan"), float("inf"), "half", "1/0", None])
def test_ratio_outside_zero_to_one_is_refused(ratio):
    with pytest.raises(BadInputError, match="give a number from 0 to 1"):
        parse_ratio(ratio)


def test_ratio_is_the_number_that_was_written():
    assert parse_ratio(0.55) == Fraction(11, 20)
    assert parse_ratio("0.1") == Fraction(1, 10)
    assert parse_ratio(Fraction(1, 3)) == Fraction(1, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_logits_on_a_gpu_pick_the_same_rows():
    rng = np.random.default_rng(0)
    for labels_too in (False, True):
        batch = make_batch(rng, 64, 10, 0.5)
        batch.logits = batch.logits.float()
        labels = batch.labels.cuda() if labels_too else batch.labels
        moved = GateBatch(batch.logits.cuda(), labels, batch.ratio, np.random.default_rng(1))
        assert (GATES["balanced"](moved) == GATES["balanced"](batch)).all()
