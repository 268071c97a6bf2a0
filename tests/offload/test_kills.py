"""A few of the kills of `benchmarks.offload_kills`, which has all of them."""

import pytest

from benchmarks._kills import Campaign, campaign, nursery


@pytest.fixture(scope="module")
def children():
    with nursery() as made:
        yield made


@pytest.mark.parametrize(
    "plan",
    [
        Campaign(("commit", "init"), ram_budget="2MiB", chunk_numel=16384, slowed=0.02),
        Campaign(("step",), commit_every=4),
        Campaign(("step",), delay=1, ram_budget="700KiB"),
    ],
    ids=["every step", "every fourth", "delayed"],
)
def test_a_kill_loses_no_more_than_promised(children, tmp_path, plan):
    fates = list(campaign(children, tmp_path / "states", plan))
    assert len(fates) == len(plan.aims)
    for fate in fates:
        assert fate.same
        assert fate.lost <= plan.may_lose
