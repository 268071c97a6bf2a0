from __future__ import annotations

import csv

import pytest

from carousel.errors import BadInputError
from carousel.runs import loggers

SAMPLE = {"event": "progress", "loss": 0.5, "swaps": {"done": 3, "by": {"x": 1}}, "ok": True}


def test_numbers_are_flattened_and_nothing_else():
    assert loggers.flatten(SAMPLE) == {"loss": 0.5, "swaps/done": 3, "swaps/by/x": 1}


def test_csv_goes_on_after_a_resume(tmp_path):
    for step in (1, 2):
        (logger,) = loggers.open_loggers(["csv", "csv"], tmp_path, {})
        logger.log("progress", {"loss": 1 / step, "new": 0} if step == 1 else {"loss": 0.5}, step)
        logger.log("experience", {"accuracy": 0.9}, step)
        logger.close()
    with (tmp_path / "csv" / "progress.csv").open() as file:
        assert list(csv.reader(file)) == [
            ["step", "loss", "new"],
            ["1", "1.0", "0"],
            ["2", "0.5", ""],
        ]
    with (tmp_path / "csv" / "experience.csv").open() as file:
        assert len(list(csv.reader(file))) == 3


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (logger,) = loggers.open_loggers(["tensorboard"], tmp_path, {})
    logger.log("progress", {"loss": 0.25}, 7)
    logger.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (point,) = events.Scalars("progress/loss")
    assert (point.step, point.value) == (7, 0.25)


def test_wandb_survives_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (logger,) = loggers.open_loggers(["wandb"], tmp_path, {"lr": 0.1})
    logger.log("progress", {"loss": 0.25}, 7)
    logger.close()
    assert list((tmp_path / "wandb").glob("offline-run-*"))


def test_a_missing_package_is_refused_with_its_install_command(monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(BadInputError, match="pip install wandb"):
        loggers.check_loggers(["csv", "wandb"])
    loggers.check_loggers(["csv"])
