"""Exported states are a state_dict of torch's, and come back bit for bit."""

import pytest
import torch

from carousel.errors import BadInputError, StorageCorruptedError, StorageIOError
from carousel.offload import TieredAdamW

SMALL = {"ram_budget": "200KiB", "chunk_numel": 1024}


@pytest.mark.parametrize("amsgrad", [False, True])
def test_torch_reads_what_is_exported(twins, tmp_path, amsgrad):
    mine, ours = twins.ours(storage=tmp_path / "s", amsgrad=amsgrad, **SMALL)
    theirs, reference = twins.torch(amsgrad=amsgrad)
    for params, optimizer in ((mine, ours), (theirs, reference)):
        twins.train(params, optimizer, 4)
    ours.export(tmp_path / "states.pt")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["states.pt"]
    twins.same_state(reference.state_dict(), torch.load(tmp_path / "states.pt", weights_only=True))
    torch.save(reference.state_dict(), tmp_path / "torch.pt")
    for name in ("states.pt", "torch.pt"):
        again = [torch.nn.Parameter(p.detach().clone()) for p in theirs]
        _, other = twins.ours(again, storage=tmp_path / name[:4], amsgrad=amsgrad, **SMALL)
        other.import_(tmp_path / name)
        other.export(tmp_path / "again.pt")
        twins.same_state(reference.state_dict(), torch.load(tmp_path / "again.pt"))
        other.close()
    ours.close()


def test_masters_are_exported(twins, tmp_path):
    params, ours = twins.ours(twins.params(dtype=torch.bfloat16))
    twins.train(params, ours, 3)
    ours.export(tmp_path / "states.pt")
    found, expected = torch.load(tmp_path / "states.pt", weights_only=True), ours.state_dict()
    twins.same_state(found, expected)
    assert all(torch.equal(found["masters"][n], m) for n, m in expected["masters"].items())


def test_an_optimizer_without_states_is_exported(twins, tmp_path):
    _, ours = twins.ours()
    ours.export(tmp_path / "states.pt")
    ours.import_(tmp_path / "states.pt")
    assert ours.state_dict()["state"] == {}


def test_files_that_cannot_be_used(twins, tmp_path):
    _, ours = twins.ours()
    with pytest.raises(BadInputError, match="does not exist"):
        ours.import_(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    torch.save([1], tmp_path / "list")
    for name in ("text", "list"):
        with pytest.raises(StorageCorruptedError):
            ours.import_(tmp_path / name)
    with pytest.raises(StorageIOError):
        ours.export(tmp_path / "none" / "states.pt")


def test_deepspeed_options(tmp_path):
    config = {
        "optimizer": {"type": "Adam", "params": {"lr": 0.02, "betas": [0.8, 0.9], "eps": 1e-6}},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 1e9,
            "offload_optimizer": {
                "device": "nvme",
                "nvme_path": str(tmp_path),
                "buffer_count": 5,
                "pin_memory": True,
                "pipeline_read": True,
            },
        },
    }
    ours = TieredAdamW.from_deepspeed_config(
        [torch.nn.Parameter(torch.ones(3))], config, ram_budget="64MiB"
    )
    assert ours.param_groups[0]["lr"] == 0.02
    assert ours.param_groups[0]["betas"] == (0.8, 0.9)
    settings = ours._book.settings
    assert (settings.clip_norm, settings.ring, settings.chunk_numel) == (1.0, 5, 1 << 20)
    assert (tmp_path / "carousel-offload" / "data.mdb").exists()
    ours.close()


@pytest.mark.parametrize(
    "config",
    [
        {"train_batch_size": 8},
        {"optimizer": {"type": "Lion"}},
        {"optimizer": {"type": "AdamW", "params": {"momentum": 1}}},
        {"optimizer": {"kind": "AdamW"}},
        {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
        {"zero_optimization": {"offload_optimizer": {"ratio": 0.5}}},
        {"zero_optimization": {"offload_optimizer": {"super_offload": True}}},
        {"zero_optimization": {"offload_param": {}}},
        {"zero_optimization": {"stage": 0}},
    ],
    ids=str,
)
def test_deepspeed_options_without_counterpart(config):
    with pytest.raises(BadInputError):
        TieredAdamW.from_deepspeed_config([torch.nn.Parameter(torch.ones(3))], config)
