"""What cannot be used is refused in words, and nothing changes."""

import pytest
import torch

from carousel.errors import BadInputError
from carousel.offload import TieredAdamW


def parameter(*shape, **options):
    return torch.nn.Parameter(torch.ones(*shape, **options))


@pytest.mark.parametrize(
    ("param", "words"),
    [
        (torch.nn.Parameter(torch.eye(3).to_sparse()), "sparse"),
        (parameter(3, dtype=torch.complex64), "complex64"),
        (torch.nn.Parameter(torch.ones(3, 4).t()), "not contiguous"),
        (torch.nn.Parameter(torch.ones(3, device="meta")), "on meta"),
        (torch.nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False), "int64"),
        ("weights", "str"),
    ],
)
def test_parameters_that_cannot_be_used(param, words, tmp_path):
    with pytest.raises((BadInputError, TypeError), match=words):
        TieredAdamW([param], storage=tmp_path / "s")
    assert not (tmp_path / "s").exists()
    ours = TieredAdamW([parameter(2)])
    with pytest.raises((BadInputError, TypeError), match=words):
        ours.add_param_group({"params": [param]})
    assert len(ours.param_groups) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1},
        {"eps": -1},
        {"weight_decay": -0.1},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9,)},
        {"ram_budget": 0},
        {"ram_budget": "much"},
        {"ram_budget": 1.5},
        {"durability": "never"},
        {"io": "carrier pigeon"},
        {"master": "fp8"},
        {"commit_every": -1},
        {"commit_every": 1.5},
        {"ring": 2},
        {"readers": 0},
        {"clip_norm": 0},
        {"chunk_numel": 100},
        {"lr": float("nan")},
    ],
    ids=str,
)
def test_options_that_cannot_be_used(options, tmp_path):
    with pytest.raises(BadInputError, match=next(iter(options))):
        TieredAdamW([parameter(3)], storage=tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(BadInputError, match="leads through a file"):
        TieredAdamW([parameter(3)], storage=tmp_path / "file" / "s")


def test_too_small_a_budget_leaves_nothing_behind(tmp_path):
    with pytest.raises(BadInputError, match="below the least"):
        TieredAdamW([parameter(100_000)], storage=tmp_path / "s", ram_budget=10_000)
    assert not (tmp_path / "s").exists()


def become_sparse(param):
    param.grad = torch.ones(2, 3).to_sparse()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (become_sparse, "sparse"),
        (lambda param: setattr(param, "data", torch.ones(2, 4)), "has shape"),
        (lambda param: setattr(param, "data", torch.ones(2, 3).double()), "has dtype"),
        (lambda param: setattr(param, "data", torch.ones(3, 2).t()), "not contiguous"),
    ],
    ids=["sparse", "shape", "dtype", "contiguous"],
)
def test_gradients_that_cannot_be_used(spoil, words, tmp_path):
    good, bad = parameter(5), parameter(2, 3)
    good.grad, bad.grad = torch.ones(5) * 3, torch.ones(2, 3)
    ours = TieredAdamW([good, bad], storage=tmp_path, ram_budget="300KiB", clip_norm=0.1)
    spoil(bad)
    with pytest.raises(BadInputError, match=words):
        ours.step()
    assert torch.equal(good, torch.ones(5))
    assert torch.equal(good.grad, torch.ones(5) * 3)
    assert not ours.state
    assert ours.stats().written_bytes == 0
    ours.close()


def test_a_group_that_cannot_be_committed_is_refused_before_the_step(tmp_path):
    param = parameter(3)
    ours = TieredAdamW([{"params": [param], "tag": object()}], storage=tmp_path)
    param.grad = torch.ones(3)
    with pytest.raises(BadInputError, match="tag"):
        ours.step()
    assert torch.equal(param, torch.ones(3))
    ours.close()


def test_a_parameter_of_another_size_with_state_is_refused():
    param = parameter(3)
    ours = TieredAdamW([param])
    param.grad = torch.ones(3)
    ours.step()
    param.grad = None
    param.data = torch.ones(5)
    param.grad = torch.ones(5)
    with pytest.raises(BadInputError, match="another size"):
        ours.step()
    del ours.state[param]
    ours.step()
    assert float(ours.state[param]["step"]) == 1


def test_commits_need_a_storage():
    with pytest.raises(BadInputError, match="nothing to commit to"):
        TieredAdamW([parameter(3)]).commit()


def test_a_closed_optimizer_is_not_used(tmp_path):
    param = parameter(3)
    ours = TieredAdamW([param], storage=tmp_path)
    ours.close()
    ours.close()
    for call in (ours.step, ours.commit, ours.flush, ours.state_dict):
        with pytest.raises(Exception, match="closed"):
            call()


def test_an_optimizer_that_is_forgotten_gives_its_folder_back(tmp_path):
    ours = TieredAdamW([parameter(3)], storage=tmp_path)
    del ours
    import gc

    gc.collect()
    TieredAdamW([parameter(3)], storage=tmp_path).close()
