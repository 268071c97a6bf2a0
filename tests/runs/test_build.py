from __future__ import annotations

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from PIL import Image

from carousel.errors import BadInputError
from carousel.runs.build import build_strategy, gather_ingredients, pick_device
from carousel.runs.config import resolve_config
from carousel.storage import MemoryTier


def gather(tmp_path, **settings):
    config = resolve_config(command_line={"model": "mlp", "device": "cpu", **settings})
    return gather_ingredients(config, tmp_path / "store")


def test_what_depends_on_the_stream_is_filled_in(tmp_path):
    parts = gather(tmp_path)
    assert (parts.config.experiences, parts.config.memory_size) == (5, 20)
    assert parts.options["admission"] == parts.config.admission == "class-balanced"
    assert parts.config.options == {"loss": "ce"}
    assert list(tmp_path.iterdir()) == []


def test_a_resolved_config_gives_the_same_again(tmp_path):
    parts = gather(tmp_path, **{"strategy.loss": "bce", "replay": "mixed"})
    again = gather_ingredients(parts.config, tmp_path / "store")
    assert again.config == parts.config
    assert again.options == parts.options


def test_the_seed_decides_weights_and_class_order(tmp_path):
    one, same, other = (gather(tmp_path, seed=seed) for seed in (0, 0, 1))
    first = next(one.model.parameters())
    assert torch.equal(first, next(same.model.parameters()))
    assert not torch.equal(first, next(other.model.parameters()))
    assert one.stream.class_order != other.stream.class_order
    fixed = gather(tmp_path, seed=1, class_order_seed=0)
    assert fixed.stream.class_order == one.stream.class_order


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_optimizer_has_its_settings(tmp_path, name):
    settings = {"optimizer": name, "lr": 0.25, "weight_decay": 0.5, "momentum": 0.75}
    group = gather(tmp_path, **settings).optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.5)
    assert group.get("momentum", 0.75) == 0.75


def test_momentum_of_nesterov(tmp_path):
    assert gather(tmp_path, optimizer="sgd", nesterov=True).optimizer.defaults["nesterov"]


def test_the_rate_falls_at_the_milestones(tmp_path):
    parts = gather(tmp_path, lr_milestones=[2, 3], lr_gamma=0.5)
    with MemoryTier() as tier:
        last = SupervisedPlugin()
        strategy = build_strategy(parts, tier, run="a", plugins=[last])
        strategy.memory.close()
        schedule, behind = strategy.plugins[1:3]
        assert (schedule.milestones, schedule.gamma) == ((2, 3), 0.5)
        assert behind is last
    with pytest.raises(BadInputError, match="lr_milestones is 3,2"):
        gather(tmp_path, lr_milestones=[3, 2])


def test_the_stream_is_the_one_that_was_asked_for(tmp_path):
    stream = gather(tmp_path, class_order="sorted", normalize=True).stream
    assert stream.class_order == tuple(range(10))
    x = stream.transform(torch.cat([split.x for split in stream.train]))
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3


def test_images_of_a_folder_are_brought_to_one_size(tmp_path):
    rng = np.random.default_rng(0)
    for name in "abcde":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 256, (9 + number, 12), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    parts = gather(tmp_path, benchmark=f"folder:{tmp_path / 'images'}", resize=16)
    assert parts.stream.input_shape == (1, 16, 16)


def test_frozen_weights_stay_out_of_the_optimizer(tmp_path, monkeypatch):
    from carousel.runs import build

    def half_frozen(*args, **kwargs):
        model = make(*args, **kwargs)
        next(model.parameters()).requires_grad_(False)
        return model

    make = build.make_model
    monkeypatch.setattr(build, "make_model", half_frozen)
    parts = gather(tmp_path)
    trained = parts.optimizer.param_groups[0]["params"]
    assert len(trained) == len(list(parts.model.parameters())) - 1


def test_devices(monkeypatch):
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(BadInputError, match="this machine has 2"):
        pick_device("cuda:2")
    with pytest.raises(BadInputError, match="use auto, cpu, cuda"):
        pick_device("abacus")
