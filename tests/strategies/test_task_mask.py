"""Masks over the classes of other tasks, by hand and against a loop."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from carousel.strategies.task_mask import TaskClasses


def known():
    tasks = TaskClasses()
    tasks.see(torch.tensor([0, 3, 3]), torch.tensor([0, 0, 0]))
    tasks.see(torch.tensor([1]), torch.tensor([2]))
    return tasks


def test_the_masked_loss_by_hand():
    """Task 0 has classes 0 and 3, task 2 has class 1 alone: its loss is 0."""
    logits = torch.tensor([[1.0, 9.0, 9.0, 2.0], [9.0, -5.0, 9.0, 9.0]])
    masked = known().mask(logits, torch.tensor([0, 2]))
    first = math.log(math.exp(1) + math.exp(2)) - 2
    expected = torch.tensor((first + 0) / 2)
    torch.testing.assert_close(cross_entropy(masked, torch.tensor([3, 1])), expected)


def test_other_outputs_get_no_gradient():
    logits = torch.zeros(1, 4, requires_grad=True)
    cross_entropy(known().mask(logits, torch.tensor([0])), torch.tensor([3])).backward()
    assert logits.grad.tolist() == [[0.5, 0.0, 0.0, -0.5]]


def test_a_task_that_was_never_met_is_not_masked():
    logits = torch.randn(2, 4)
    assert torch.equal(known().mask(logits, torch.tensor([1, 7])), logits)


def test_states_travel():
    other = TaskClasses()
    other.load_state_dict(known().state_dict())
    logits = torch.randn(3, 4)
    tasks = torch.tensor([0, 2, 1])
    assert torch.equal(other.mask(logits, tasks), known().mask(logits, tasks))


pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(pairs, max_size=3), asked=st.lists(st.integers(0, 6), max_size=5))
def test_against_a_loop(batches, asked):
    tasks, classes = TaskClasses(), {}
    for batch in batches:
        tasks.see(torch.tensor([c for _, c in batch]), torch.tensor([t for t, _ in batch]))
        for task, label in batch:
            classes.setdefault(task, set()).add(label)
    logits = torch.randn(len(asked), 9)
    masked = tasks.mask(logits, torch.tensor(asked, dtype=torch.int64))
    for row, task in enumerate(asked):
        for output in range(9):
            own = output in classes.get(task, range(9))
            assert masked[row, output] == (logits[row, output] if own else -math.inf)
