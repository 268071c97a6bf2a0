"""What a run measures beside the accuracy matrix, and that measuring changes nothing."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from carousel.cli.app import app
from carousel.report import metrics
from carousel.runs.folder import RunFolder, read_lines

TINY = ("--limit", 24, "--epochs", 1, "--model", "mlp", "--batch-size", 12, "--lr", 0.01)
TINY += ("--experiences", 3, "--sync", "--quiet", "--checkpoint-every", 2)


def start(out, *words):
    line = ["train", "--out", out, *TINY, *words]
    result = CliRunner().invoke(app, [str(word) for word in line])
    assert result.exit_code == 0, result.output
    return json.loads((out / "summary.json").read_text())


def same_weights(one, other) -> bool:
    first, second = (torch.load(run / "model.pt", weights_only=True) for run in (one, other))
    return all(torch.equal(first[name], second[name]) for name in second)


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A run that is tested every 5 steps; an experience has 6 or 8."""
    out = tmp_path_factory.mktemp("tested") / "run"
    return out, start(out, "--eval-every", 5)


def test_anytime_accuracy_is_that_of_the_tests_in_the_log(tested):
    out, summary = tested
    lines = [line for line in read_lines(out / "metrics.jsonl") if line["event"] == "anytime"]
    steps = [line["iteration"] for line in lines]
    total = summary["iterations"]
    assert steps == list(range(5, total + 1, 5))
    values = [line["accuracy_seen"] for line in lines]
    if steps[-1] < total:
        steps, values = [*steps, total], [*values, summary["final_accuracy"]]
    assert summary["anytime_accuracy"] == pytest.approx(metrics.anytime_accuracy(steps, values))
    assert 0 < summary["anytime_accuracy"] < 1


def test_testing_changes_nothing_in_training(tested, tmp_path):
    untested = start(tmp_path / "run")
    assert untested["anytime_accuracy"] is None
    assert untested["accuracy_matrix"] == tested[1]["accuracy_matrix"]
    assert untested["swaps"] == tested[1]["swaps"]
    assert same_weights(tmp_path / "run", tested[0])


def test_a_run_that_is_resumed_measures_the_same(tested, tmp_path, monkeypatch):
    from carousel.runs.observer import Observer

    class Killed(BaseException):
        pass

    real, steps = Observer.after_training_iteration, []

    def kill_at_13(self, strategy, *args, **kwargs):
        real(self, strategy, *args, **kwargs)
        steps.append(1)
        if len(steps) == 13:
            raise Killed

    out = tmp_path / "run"
    words = [str(word) for word in ("train", "--out", out, *TINY, "--eval-every", 5)]
    monkeypatch.setattr(Observer, "after_training_iteration", kill_at_13)
    with pytest.raises(Killed):
        CliRunner().invoke(app, words)
    monkeypatch.setattr(Observer, "after_training_iteration", real)
    resumed = CliRunner().invoke(app, ["train", "--resume", "--quiet", "--out", str(out)])
    assert resumed.exit_code == 0, resumed.output
    summary = json.loads((out / "summary.json").read_text())
    for key in ("anytime_accuracy", "accuracy_matrix", "task_il_accuracy_matrix", "iterations"):
        assert summary[key] == tested[1][key], key
    assert same_weights(out, tested[0])
    history = RunFolder(out).record().samples
    assert [s["iteration"] for s in history if s["event"] == "anytime"][:2] == [5, 10]


def test_the_task_incremental_matrix_is_kept_beside_the_other(tested):
    out, summary = tested
    rows = list(csv.reader((out / "accuracy_matrix_task_il.csv").read_text().splitlines()))
    assert [[float(v) for v in row[1:]] for row in rows[2:]] == summary["task_il_accuracy_matrix"]
    told, plain = (np.array(summary[f"{k}accuracy_matrix"]) for k in ("task_il_", ""))
    assert (told >= plain).all()
    assert (told > plain).any()
    scores = metrics.score(
        told, np.array(summary["test_samples"]), np.array(rows[1][1:], dtype=np.float64)
    )
    for name in ("average_accuracy", "final_accuracy", "forgetting", "bwt", "fwt"):
        assert summary[f"task_il_{name}"] == pytest.approx(getattr(scores, name)), name


def test_it_is_shown(tested, carousel):
    said = carousel("train", "--resume", "--out", tested[0], width=120).stdout
    page = (tested[0] / "report.html").read_text()
    for words in ("task-incremental", "anytime accuracy", "learning accuracy"):
        assert words in said
        assert words in page


def test_rows_that_a_kill_left_out_are_measured_again(tested, tmp_path):
    """The one file was written, the other not yet."""
    folder = RunFolder(shutil.copytree(tested[0], tmp_path / "run"))
    folder.summary_file.unlink()
    lines = folder.task_matrix_file.read_text().splitlines(keepends=True)
    folder.task_matrix_file.write_text("".join(lines[:-1]))
    result = CliRunner().invoke(app, ["train", "--resume", "--quiet", "--out", str(folder.path)])
    assert result.exit_code == 0, result.output
    assert folder.task_matrix_file.read_text() == "".join(lines)


@pytest.mark.parametrize(
    "words",
    [
        ("icarl",),
        ("bic", "--memory-size", 20),
        ("tiny-er", "--set", "strategy.task_aware=true"),
        ("der++",),
        ("naive",),
    ],
    ids=lambda words: words[0],
)
def test_eval_rebuilds_the_model_of_every_method(carousel, tmp_path, words):
    out = tmp_path / "run"
    summary = start(out, "--strategy", *words)
    found = json.loads(carousel("eval", out, "--json").stdout)
    assert found["accuracies"] == summary["accuracy_matrix"][-1]
    assert found["task_il_accuracies"] == summary["task_il_accuracy_matrix"][-1]
    if words[0] in ("icarl", "bic"):
        weights = torch.load(out / "model.pt", weights_only=True)
        assert any(name.startswith("net.") for name in weights)


def test_a_diverged_run_ends_with_one_line_that_names_the_last_checkpoint(carousel, tmp_path):
    out = tmp_path / "run"
    words = ("--optimizer", "sgd", "--lr", 1e30, "--checkpoint-every", 1)
    result = carousel("train", "--out", out, *TINY, *words)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "the loss is nan in experience 1, iteration" in result.stderr
    newest = max(out.glob("checkpoints/*.pt"))
    assert f"lower the learning rate, last checkpoint {newest}" in result.stderr
    assert "DivergedError" in (out / "log.txt").read_text()
    assert not (out / "summary.json").exists()


def test_strategies_are_listed_with_their_options(carousel):
    listed = json.loads(carousel("strategies", "--json").stdout)["strategies"]
    found = {row["name"]: row for row in listed}
    assert found.keys() >= {"er", "naive", "joint", "tiny-er", "icarl", "bic", "gdumb", "der++"}
    assert found["er"]["options"]["loss"] == "ce"
    assert not found["naive"]["memory"]
    shown = carousel("strategies", width=100).stdout
    assert "loss=ce" in shown
    assert "--admission=class-balanced" in shown
