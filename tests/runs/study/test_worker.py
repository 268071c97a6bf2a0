"""One run in a process of its own: how it ends, well, badly, or because it was asked to."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from carousel.runs.folder import RunFolder, read_lines
from carousel.runs.study.worker import Job, Verdict, run_job

TINY = {"strategy": "er", "limit": 20, "model": "mlp", "epochs": 1, "device": "cpu"}


def job_of(tmp_path: Path, **settings: object) -> Job:
    return Job(
        settings={**TINY, **settings},
        out=str(tmp_path / "run"),
        log=str(tmp_path / "logs" / "run.txt"),
        cwd=os.getcwd(),
    )


def test_the_command_is_that_of_train(tmp_path):
    job = job_of(tmp_path, **{"strategy.loss": "bce", "no_swap": True})
    words = job.command()
    assert words[:3] == ["train", "--set", 'strategy="er"']
    assert 'strategy.loss="bce"' in words
    assert "no_swap=true" in words
    assert words[-2:] == ["--out", job.out]


def test_a_run_that_was_cut_before_it_wrote_anything_starts_and_one_that_is_stopped_goes_on(
    tmp_path,
):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    job = job_of(tmp_path, epochs=400, experiences=2, sync=True)
    folder = RunFolder(Path(job.out))
    stop = threading.Event()

    def when_it_learns() -> bool:
        if any(line.get("event") == "progress" for line in read_lines(folder.metrics_file)):
            stop.set()
        return stop.is_set()

    assert run_job(job, when_it_learns) == Verdict("stopped")
    assert not folder.finished
    assert list(folder.checkpoints.glob("*.pt"))
    environment = json.loads(folder.environment_file.read_text())
    assert environment["command"].startswith("carousel train --set")
    assert environment["threads"] == 1


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"lr": -1.0}, "lr is -1.0: it should be greater than 0"),
        ({"model": "study_models:dies"}, "killed by signal SIGKILL"),
    ],
)
def test_a_failure_is_one_line(tmp_path, monkeypatch, settings, error):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert run_job(job_of(tmp_path, **settings)) == Verdict("failed", error)
