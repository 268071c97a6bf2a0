from __future__ import annotations

import pytest
import torch

from carousel.errors import BadInputError
from carousel.runs.build import gather_ingredients, pick_device
from carousel.runs.config import resolve_config


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
