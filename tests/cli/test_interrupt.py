"""Runs that do not reach their end by themselves: Ctrl-C, failures, and going on after them."""

from __future__ import annotations

import json
import shutil
import signal
import sys

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from carousel.cli.app import app
from carousel.errors import WorkerError
from carousel.memory import Carousel
from carousel.runs.folder import read_lines

TINY = ("--limit", 24, "--epochs", 2, "--batch-size", 16, "--lr", 0.01, "--sync", "--quiet")


class Tripwire(nn.Module):
    """A small model that does something when training reaches a forward pass."""

    countdown: int | None = None
    act = staticmethod(lambda: None)

    def __init__(self, shape: tuple[int, int, int], n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(shape[1] * shape[2], 32), nn.ReLU(), nn.Linear(32, n_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        if Tripwire.countdown is not None:
            Tripwire.countdown -= 1
            if Tripwire.countdown < 0:
                Tripwire.countdown = None
                Tripwire.act()
        return self.body(x)


def make(shape, n_classes):
    return Tripwire(shape, n_classes)


def trip(monkeypatch, countdown: int, act) -> None:
    monkeypatch.setattr(Tripwire, "countdown", countdown)
    monkeypatch.setattr(Tripwire, "act", staticmethod(act))


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True, scope="module")
def _model_on_path():
    """The command line finds this module by name, as it would a user's own."""
    sys.modules["tripwire_model"] = sys.modules[__name__]
    yield
    del sys.modules["tripwire_model"]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch, request):
    """They take most of the time of a tiny run, and are looked at elsewhere."""
    if "with_report" not in request.fixturenames:
        monkeypatch.setattr("carousel.runs.train.write_report", lambda *_: None)


@pytest.fixture
def with_report():
    """For tests of the report."""


MODEL = ("--model", "tripwire_model:make")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The same run without an interruption."""
    out = tmp_path_factory.mktemp("whole") / "run"
    words = ["train", *MODEL, *TINY, "--out", out]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return out


def assert_same_end(one, other) -> None:
    first, second = (json.loads((run / "summary.json").read_text()) for run in (one, other))
    for key in ("accuracy_matrix", "swaps", "distinct_samples_replayed", "iterations"):
        assert first[key] == second[key], key
    first, second = (torch.load(run / "model.pt", weights_only=True) for run in (one, other))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


# 5 test sets are passed before training; an experience has 6 steps and is followed by 5 more
MOMENTS = {
    "first step": 5,
    "mid-experience": 5 + 11 + 4,
    "while testing": 5 + 11 + 6 + 2,
    "last step": 5 + 4 * 11 + 5,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_writes_a_checkpoint_and_resume_ends_as_if_nothing_had_been(
    carousel, tmp_path, monkeypatch, whole_run, moment
):
    out = tmp_path / "cut"
    trip(monkeypatch, MOMENTS[moment], press_ctrl_c)
    result = carousel("train", *MODEL, *TINY, "--out", out)
    assert result.exit_code == 130, result.output
    assert f"carousel train --resume --out {out}" in result.stderr
    assert list((out / "checkpoints").glob("*.pt"))
    assert not (out / "summary.json").exists()
    result = carousel("train", "--resume", "--out", out, "--quiet")
    assert result.exit_code == 0, result.output
    assert_same_end(out, whole_run)


def test_ctrl_c_before_anything_was_learned(carousel, tmp_path, monkeypatch, whole_run):
    out = tmp_path / "cut"
    trip(monkeypatch, 2, press_ctrl_c)
    result = carousel("train", *MODEL, *TINY, "--out", out)
    assert result.exit_code == 130
    assert "nothing learned yet" in result.stderr
    assert carousel("train", "--resume", "--out", out, "--quiet").exit_code == 0
    assert_same_end(out, whole_run)


@pytest.mark.parametrize(
    "words",
    [
        ("--strategy", "naive"),
        ("--strategy", "joint"),
        ("--update", "batch", "--admission", "reservoir"),
        ("--replay", "mixed", "--optimizer", "sgd", "--set", "strategy.loss=bce"),
    ],
    ids=lambda words: words[1],
)
def test_other_ways_to_learn_resume_as_exactly(carousel, tmp_path, monkeypatch, words):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert carousel("train", *MODEL, *TINY, *words, "--out", whole).exit_code == 0
    trip(monkeypatch, MOMENTS["mid-experience"], press_ctrl_c)
    assert carousel("train", *MODEL, *TINY, *words, "--out", cut).exit_code == 130
    result = carousel("train", "--resume", "--out", cut, "--quiet")
    assert result.exit_code == 0, result.output
    assert_same_end(cut, whole)


def test_an_error_that_training_survived_costs_no_result(
    carousel, tmp_path, monkeypatch, with_report
):
    def complain(*_: object) -> None:
        raise WorkerError("the swap worker met a ghost")

    monkeypatch.setattr(Carousel, "flush", complain)
    result = carousel("train", *MODEL, *TINY, "--out", tmp_path / "r")
    assert result.exit_code == 1
    assert "met a ghost" in result.stderr
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert "met a ghost" in summary["problems"][0]
    assert (tmp_path / "r" / "report.html").is_file()


def test_several_interruptions_of_one_run(carousel, tmp_path, monkeypatch, whole_run):
    out = tmp_path / "cut"
    for countdown in (13, 17, 3):
        trip(monkeypatch, countdown, press_ctrl_c)
        words = ("--resume", "--out", out)
        assert carousel("train", *MODEL, *TINY, *words).exit_code == 130
    assert carousel("train", "--resume", "--out", out, "--quiet").exit_code == 0
    assert_same_end(out, whole_run)
    lines = read_lines(out / "metrics.jsonl")
    assert [line["event"] for line in lines].count("resume") == 3


def test_sigterm_stops_a_run_in_the_same_way(carousel, tmp_path, monkeypatch):
    trip(monkeypatch, 20, lambda: signal.raise_signal(signal.SIGTERM))
    result = carousel("train", *MODEL, *TINY, "--out", tmp_path / "cut")
    assert result.exit_code == 128 + signal.SIGTERM
    assert list((tmp_path / "cut" / "checkpoints").glob("*.pt"))


def test_a_failure_is_one_line_with_its_details_in_the_log(
    carousel, tmp_path, monkeypatch, whole_run
):
    def fail() -> None:
        raise RuntimeError("the model\nis broken")

    out = tmp_path / "cut"
    trip(monkeypatch, MOMENTS["mid-experience"], fail)
    result = carousel("train", *MODEL, *TINY, "--out", out)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "RuntimeError: the model is broken" in result.stderr
    assert str(out / "log.txt") in result.stderr
    assert "Traceback" in (out / "log.txt").read_text()
    assert carousel("train", "--resume", "--out", out, "--quiet").exit_code == 0
    assert_same_end(out, whole_run)


def test_an_unfinished_run_can_be_reported(carousel, tmp_path, monkeypatch):
    out = tmp_path / "cut"
    trip(monkeypatch, MOMENTS["mid-experience"], press_ctrl_c)
    carousel("train", *MODEL, *TINY, "--out", out)
    assert carousel("report", out).exit_code == 0
    assert "not finished" in (out / "report.html").read_text()


def test_resuming_with_other_settings_is_refused(carousel, tmp_path, monkeypatch):
    out = tmp_path / "cut"
    trip(monkeypatch, 20, press_ctrl_c)
    carousel("train", *MODEL, *TINY, "--out", out)
    result = carousel("train", "--resume", "--out", out, "--lr", 0.5)
    assert result.exit_code == 2
    assert "lr is 0.5 and the run in" in result.stderr
    assert "was started with 0.01" in result.stderr


def test_a_run_whose_checkpoints_are_gone_starts_again(carousel, tmp_path, monkeypatch, whole_run):
    """As after a kill before the first checkpoint: stored samples count only when met again."""
    out = tmp_path / "cut"
    trip(monkeypatch, MOMENTS["while testing"], press_ctrl_c)
    carousel("train", *MODEL, *TINY, "--out", out)
    for file in (out / "checkpoints").glob("*.pt"):
        file.unlink()
    assert carousel("train", "--resume", "--out", out, "--quiet").exit_code == 0
    assert_same_end(out, whole_run)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    carousel, tmp_path, monkeypatch, whole_run
):
    out = tmp_path / "cut"
    trip(monkeypatch, 5 + 2 * 11 + 3, press_ctrl_c)
    carousel("train", *MODEL, *TINY, "--out", out)
    newest = max((out / "checkpoints").glob("*.pt"))
    newest.write_bytes(newest.read_bytes()[:1000])
    assert carousel("train", "--resume", "--out", out, "--quiet").exit_code == 0
    assert_same_end(out, whole_run)


def test_a_moved_run_folder_goes_on(carousel, tmp_path, monkeypatch, whole_run):
    trip(monkeypatch, MOMENTS["mid-experience"], press_ctrl_c)
    carousel("train", *MODEL, *TINY, "--out", tmp_path / "cut")
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(tmp_path / "cut", moved)
    assert carousel("train", "--resume", "--out", moved, "--quiet").exit_code == 0
    assert_same_end(moved, whole_run)
