"""How often the kernel is called: not more often than has to be."""

from __future__ import annotations

import pytest
import torch

from carousel.offload import TieredAdamW, update


@pytest.fixture
def calls(monkeypatch):
    """Elements that each call of the kernel updates, in the order of the calls."""
    seen = []
    real = update.fused_update

    def counting(operands, group, grad_scale):
        seen.append([values.numel() for values in operands.params])
        real(operands, group, grad_scale)

    monkeypatch.setattr(update, "fused_update", counting)
    return seen


def test_chunks_in_ram_take_one_call_a_group(twins, calls):
    theirs, reference = twins.torch()
    params, optimizer = twins.ours(chunk_numel=4096)
    twins.train(theirs, reference, 3)
    twins.train(params, optimizer, 3)
    assert len(calls) == 3 * 3
    assert twins.same(params, theirs)


def test_types_are_kept_apart(twins, calls):
    def made():
        return [
            torch.nn.Parameter(torch.full((300,), 0.5, dtype=dtype))
            for dtype in (torch.float32, torch.float64, torch.float32)
        ]

    theirs, params = made(), made()
    reference, optimizer = torch.optim.AdamW(theirs, fused=True), TieredAdamW(params)
    twins.train(theirs, reference, 2, gaps=False)
    twins.train(params, optimizer, 2, gaps=False)
    assert [sorted(call) for call in calls[:2]] == [[300, 300], [300]]
    assert twins.same(params, theirs)


def test_chunks_from_a_file_take_a_call_each_beside_those_in_ram(twins, calls, tmp_path):
    theirs, params = ([torch.nn.Parameter(torch.ones(64 * 1024))] for _ in range(2))
    budget = 4 * (3 * 4 + 1) * 4096 + 12 * 4096 * 8
    with TieredAdamW(
        params, storage=tmp_path, chunk_numel=4096, ring=4, ram_budget=budget
    ) as optimizer:
        twins.train(params, optimizer, 1, gaps=False)
        assert optimizer.stats().resident_fraction == 12 / 16
    twins.train(theirs, torch.optim.AdamW(theirs, fused=True), 1, gaps=False)
    assert [len(call) for call in calls] == [3, 1] * 4
    assert twins.same(params, theirs)


def test_gradients_that_are_cast_are_there_one_chunk_at_a_time(twins, calls):
    params = [torch.nn.Parameter(torch.ones(64 * 3, dtype=torch.bfloat16))]
    params[0].grad_dtype = torch.float32
    optimizer = TieredAdamW(params, chunk_numel=64, master="none")
    params[0].grad = torch.ones(64 * 3)
    optimizer.step()
    assert calls == [[64]] * 3
