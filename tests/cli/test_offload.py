"""``carousel train --offload``: the same weights from states that do not fit, also when resumed."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial

import pytest
import torch
from torch import nn

BUDGET = 150 << 10
WORDS = (
    *("--model", "wide_model:make", "--strategy", "er", "--optimizer", "adamw"),
    *("--limit", 24, "--epochs", 2, "--batch-size", 16, "--lr", 0.003, "--sync", "--quiet"),
    *("--experiences", 2),
)


class Wide(nn.Module):
    """A model whose AdamW states take four times the budget."""

    steps_until_ctrl_c: int | None = None

    def __init__(self, shape, n_classes):
        super().__init__()
        pixels = shape[1] * shape[2]
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, 1100), nn.ReLU(), nn.Linear(1100, n_classes)
        )

    def forward(self, x):
        if self.training and Wide.steps_until_ctrl_c is not None:
            Wide.steps_until_ctrl_c -= 1
            if Wide.steps_until_ctrl_c == 0:
                signal.raise_signal(signal.SIGINT)
        return self.body(x)


def make(shape, n_classes):
    return Wide(shape, n_classes)


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch):
    monkeypatch.setitem(sys.modules, "wide_model", sys.modules[__name__])
    monkeypatch.setattr("carousel.runs.train.write_report", lambda *_: None)
    yield
    Wide.steps_until_ctrl_c = None


@pytest.fixture
def weights(carousel, tmp_path):
    """Train into a folder and return the weights."""

    def train(name, *words, code=0):
        result = carousel("train", *WORDS, *words, "--out", tmp_path / name)
        assert result.exit_code == code, result.output
        return None if code else torch.load(tmp_path / name / "model.pt", weights_only=True)

    return train


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_the_same_weights_as_all_in_ram(weights, monkeypatch, tmp_path):
    states = 8 * sum(p.numel() for p in make((1, 8, 8), 10).parameters())
    assert states > 4 * BUDGET
    monkeypatch.setattr("carousel.runs.build.AdamW", partial(torch.optim.AdamW, fused=True))
    plain = weights("plain")
    assert same(plain, weights("offloaded", "--offload", f"{BUDGET >> 10}KiB"))
    assert same(plain, weights("roomy", "--offload", "64MiB"))
    assert not (tmp_path / "offloaded" / "offload").exists()
    checkpoints = [path.name[:10] for path in (tmp_path / "offloaded" / "checkpoints").glob("*.pt")]
    assert sorted(checkpoints) == ["checkpoint"] * 2 + ["optimizer-"] * 2


def test_a_run_that_was_stopped_goes_on_bit_for_bit(weights, carousel, tmp_path):
    whole = weights("whole", "--offload", "150KiB")
    Wide.steps_until_ctrl_c = 10
    weights("cut", "--offload", "150KiB", code=130)
    assert not (tmp_path / "cut" / "summary.json").exists()
    result = carousel("train", "--resume", "--out", tmp_path / "cut", "--quiet")
    assert result.exit_code == 0, result.output
    assert same(whole, torch.load(tmp_path / "cut" / "model.pt", weights_only=True))


def test_an_optimizers_file_that_was_damaged_is_refused(weights, carousel, tmp_path):
    Wide.steps_until_ctrl_c = 10
    weights("cut", "--offload", "150KiB", code=130)
    for path in (tmp_path / "cut" / "checkpoints").glob("optimizer-*.pt"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    result = carousel("train", "--resume", "--out", tmp_path / "cut", "--quiet")
    assert result.exit_code == 1
    assert "checksum" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--offload", "much"), "offload is 'much'"),
        (("--offload", "1MiB", "--optimizer", "sgd"), "use optimizer adamw"),
        (("--offload", "1MiB", "--device", "cuda"), "use device cpu"),
        (("--offload", "10KiB"), "below the least"),
    ],
)
def test_what_cannot_be_used(carousel, tmp_path, words, said):
    result = carousel("train", *WORDS, *words, "--out", tmp_path / "r", width=200)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "r").exists()


def test_the_setting_is_saved(weights, tmp_path):
    weights("r", "--offload", "1MiB")
    assert "offload: 1MiB" in (tmp_path / "r" / "config.yaml").read_text()
    assert json.loads((tmp_path / "r" / "summary.json").read_text())
