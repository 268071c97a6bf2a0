"""kill -9 at random moments of a real `carousel train`: five kills, as each costs seconds."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from carousel.cli.app import app
from carousel.storage import LMDBTier

WORK = ("--epochs", "3", "--batch-size", "8", "--checkpoint-every", "50", "--quiet")
STEPS = 570
SAMPLES = 1498
DEADLINE = 120.0


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "carousel", "train", *(str(word) for word in words), *WORK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )


def finish(*words: object) -> None:
    """Run to the end; in this process, which spares seconds of imports."""
    result = CliRunner().invoke(app, ["train", *(str(word) for word in words), *WORK])
    assert result.exit_code == 0, result.output


@pytest.fixture(autouse=True)
def _one_thread():
    """As in the processes that are killed: sums must round in the same way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def last_checkpoint(out: Path) -> int:
    """Steps in the newest checkpoint; its file is named so."""
    files = out.glob("checkpoints/*.pt")
    return max((int(path.stem.rpartition("-")[2]) for path in files), default=0)


def kill_beyond(run: subprocess.Popen[str], out: Path, step: int, rng: random.Random) -> None:
    """Kill a run at a random moment after a checkpoint of this step or a later one."""
    end = time.monotonic() + DEADLINE
    while last_checkpoint(out) < step:
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.05))
    run.kill()
    run.communicate()
    assert run.returncode == -signal.SIGKILL


def stored_ids(store: Path) -> set[int]:
    """Ids in a storage, every one of which passes its checksum."""
    with LMDBTier(store, readonly=True) as tier:
        assert tier.verify().ok
        return set(tier.entries().ids.tolist())


@pytest.mark.timeout(600)
def test_a_killed_run_ends_as_if_nothing_had_been(tmp_path):
    """Sync mode: the model is the same bit for bit, and so are the swaps."""
    rng = random.Random(0)
    whole, out = tmp_path / "whole", tmp_path / "cut"
    finish("--sync", "--out", whole)
    steps = sorted(rng.sample(range(50, STEPS - 100, 50), 3))
    for step in steps:
        run = start("--sync", "--resume", "--out", out)
        kill_beyond(run, out, step, rng)
        assert not (out / "summary.json").exists()
    finish("--resume", "--out", out)
    one, other = (json.loads((run / "summary.json").read_text()) for run in (whole, out))
    for key in ("accuracy_matrix", "swaps", "distinct_samples_replayed", "iterations"):
        assert one[key] == other[key], key
    weights = torch.load(whole / "model.pt", weights_only=True)
    for name, tensor in torch.load(out / "model.pt", weights_only=True).items():
        assert torch.equal(tensor, weights[name]), name


@pytest.mark.timeout(600)
def test_nothing_that_was_stored_is_lost(tmp_path):
    """The default, asynchronous mode, where saves and swaps run beside the training."""
    rng = random.Random(1)
    out = tmp_path / "cut"
    seen: set[int] = set()
    for step in sorted(rng.sample(range(50, STEPS - 100, 50), 2)):
        run = start("--resume", "--out", out)
        kill_beyond(run, out, step, rng)
        stored = stored_ids(out / "storage")
        assert stored >= seen
        seen = stored
    finish("--resume", "--out", out)
    assert stored_ids(out / "storage") == set(range(SAMPLES))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["iterations"] == STEPS
    assert summary["swaps"]["done"] > 0
    assert summary["final_accuracy"] > 0.7
    assert summary["problems"] == []
