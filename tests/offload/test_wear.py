"""What was written in a store's life is counted, and a step beyond the limit changes nothing."""

import logging

import pytest
import torch

from carousel.errors import BadInputError, TierFullError
from carousel.offload import TieredAdamW
from carousel.offload.inspection import summarize_states

SMALL = {"ram_budget": "300KiB", "chunk_numel": 4096, "durability": "process"}


def train_until_refused(twins, params, optimizer, **options):
    """The number of steps that were taken."""
    for step in range(100):
        try:
            twins.train(params, optimizer, 1, first=step, **options)
        except TierFullError:
            return step
    raise AssertionError("nothing was refused")


def resume(twins, folder, seed=99, **options):
    params = twins.params(seed)
    return params, TieredAdamW.resume(twins.groups(params), folder, **SMALL_AGAIN | options)


SMALL_AGAIN = {"ram_budget": "300KiB", "durability": "process"}


@pytest.mark.parametrize("every", [1, 4])
def test_the_estimate_is_what_steps_write(twins, tmp_path, every):
    params, ours = twins.ours(storage=tmp_path, commit_every=every, **SMALL)
    assert 0 < ours.stats().resident_fraction < 1
    twins.train(params, ours, 8, gaps=False)
    ours.flush()
    found = ours.stats()
    assert found.written_bytes == found.store_written_bytes
    assert found.written_bytes == pytest.approx(8 * found.step_written_bytes, abs=8)
    ours.close()


def test_the_count_outlives_the_process(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path, **SMALL)
    twins.train(params, ours, 3)
    params[5] = ours.param_groups[2]["params"][1] = torch.nn.Parameter(torch.ones(200, 131))
    twins.train(params, ours, 1, first=3)
    ours.flush()
    before = ours.stats()
    assert before.moves == 1
    assert before.store_written_bytes == before.written_bytes
    ours.close()
    assert summarize_states(tmp_path).written_bytes == before.written_bytes
    twins.shapes = (*twins.shapes[:5], (200, 131))
    params, ours = resume(twins, tmp_path)
    twins.train(params, ours, 2)
    ours.flush()
    after = ours.stats()
    assert after.store_written_bytes == before.written_bytes + after.written_bytes
    ours.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"commit_every": 3},
        {"commit_every": 0},
        {"durability": "ephemeral"},
        {"delay": 1, "delay_from": 2, "ram_budget": "600KiB"},
    ],
    ids=["every", "third", "explicit", "ephemeral", "delayed"],
)
@pytest.mark.filterwarnings("ignore:delay=1")
def test_a_step_beyond_the_limit_changes_nothing(twins, tmp_path, options):
    limit = 2_500_000
    params, ours = twins.ours(
        storage=tmp_path, max_bytes_written=limit, clip_norm=1e-3, **SMALL | options
    )
    steps = train_until_refused(twins, params, ours, gaps=False)
    ours.flush()
    kept = [p.detach().clone() for p in params]
    grads = [p.grad.clone() for p in params]
    twins.gradients(params, steps, gaps=False)
    assert twins.same(grads, [p.grad for p in params])
    with pytest.raises(TierFullError, match=f"the next step .* max_bytes_written is {limit}"):
        ours.step()
    assert twins.same(grads, [p.grad for p in params])
    assert twins.same(kept, params)
    found = ours.stats()
    assert found.steps == steps >= 3
    if options.get("durability") != "ephemeral":
        ours.commit()
    assert limit - 2 * found.step_written_bytes < ours.stats().store_written_bytes <= limit
    ours.close()


def test_after_the_limit_is_raised_it_goes_on_bit_for_bit(twins, tmp_path):
    theirs, reference = twins.torch()
    mine, ours = twins.ours(storage=tmp_path, max_bytes_written="2MiB", **SMALL)
    steps = train_until_refused(twins, mine, ours)
    ours.close()
    with pytest.raises(TierFullError):
        twins.train(*resume(twins, tmp_path, max_bytes_written="2MiB"), 1, first=steps)
    mine, ours = resume(twins, tmp_path, max_bytes_written="1GiB")
    twins.train(mine, ours, 3, first=steps)
    twins.train(theirs, reference, steps + 3)
    assert twins.same(mine, theirs)
    twins.same_state(reference.state_dict(), ours.state_dict())
    ours.close()


def test_backward_leaves_a_step_beyond_the_limit_alone(tmp_path):
    weight = torch.nn.Parameter(torch.ones(20_000))
    options = {"chunk_numel": 4096, "ram_budget": "300KiB", "storage": tmp_path}
    ours = TieredAdamW([weight], update_in="backward", max_bytes_written=700_000, **options)
    for _ in range(2):
        (weight * 3).sum().backward()
        ours.step()
        assert weight.grad is None
    kept = weight.detach().clone()
    (weight * 3).sum().backward()
    with pytest.raises(TierFullError, match="the next step"):
        ours.step()
    assert torch.equal(weight, kept)
    assert torch.equal(weight.grad, torch.full((20_000,), 3.0))
    ours.commit()
    assert ours.stats().store_written_bytes <= 700_000
    ours.close()


def test_a_move_beyond_the_limit_changes_nothing(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path, max_bytes_written=1_300_000, **SMALL)
    twins.train(params, ours, 2, gaps=False)
    before = ours.state_dict()
    _, other = twins.torch(amsgrad=True)
    with pytest.raises(TierFullError, match="new file"):
        ours.load_state_dict(other.state_dict())
    twins.same_state(ours.state_dict(), before)
    params[5] = ours.param_groups[2]["params"][1] = torch.nn.Parameter(torch.ones(200, 131))
    twins.gradients(params, 2, gaps=False)
    with pytest.raises(TierFullError, match="the next step"):
        ours.step()
    assert len(list(tmp_path.glob("states-*.bin"))) == 1
    assert ours.stats().moves == 0
    ours.close()


def test_without_a_storage_nothing_wears(twins):
    params, ours = twins.ours(max_bytes_written=1)
    twins.train(params, ours, 2)
    found = ours.stats()
    assert (found.store_written_bytes, found.step_written_bytes) == (0, 0)


@pytest.mark.parametrize("limit", [0, -1, "much", 1.5])
def test_a_limit_that_is_none(twins, tmp_path, limit):
    with pytest.raises(BadInputError, match="max_bytes_written"):
        twins.ours(storage=tmp_path / "s", max_bytes_written=limit, **SMALL)
    assert not (tmp_path / "s").exists()


def test_the_log_says_what_a_step_writes(twins, tmp_path, caplog):
    caplog.set_level(logging.INFO, "carousel.offload")
    _, ours = twins.ours(storage=tmp_path, max_bytes_written="1GiB", **SMALL)
    usual = ours.stats().step_written_bytes
    assert f"a step writes about {usual} bytes to {tmp_path}" in caplog.text
    assert f"{1 << 30} may be" in caplog.text
    ours.close()
