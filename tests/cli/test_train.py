"""`carousel train` from its first line to the run folder, in this process."""

from __future__ import annotations

import csv
import json
import re
import shutil

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from carousel.cli.app import app
from carousel.report import metrics
from carousel.report.record import PLOT_NAMES
from carousel.runs.config import resolve_config
from carousel.runs.folder import read_lines
from carousel.storage import LMDBTier

TINY = ("--limit", 24, "--epochs", 2, "--model", "mlp", "--batch-size", 16, "--lr", 0.01)
KEYS = {
    "average_accuracy",
    "final_accuracy",
    "average_incremental_accuracy",
    "forgetting",
    "bwt",
    "accuracy_matrix",
    "swaps",
    "ram_bytes",
    "ram_bytes_peak",
    "storage_bytes",
    "storage_live_bytes",
    "save_stall_seconds",
    "distinct_samples_replayed",
    "seconds",
    "samples_per_second",
}
OUTCOMES = ("done", "stale", "duplicate", "no_candidate", "corrupt", "io_error")
OUTCOMES += ("dropped_full", "cancelled")


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def weights_of(folder):
    return torch.load(folder / "model.pt", weights_only=True)


def assert_same_run(one, other):
    """Bit for bit the same model, and the same swaps."""
    assert summary_of(one)["swaps"] == summary_of(other)["swaps"]
    assert summary_of(one)["accuracy_matrix"] == summary_of(other)["accuracy_matrix"]
    for name, tensor in weights_of(one).items():
        assert torch.equal(tensor, weights_of(other)[name]), name


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """One run in sync mode that many tests look at; they leave it as it is."""
    folder = tmp_path_factory.mktemp("first") / "run"
    words = ["train", "--out", folder, "--sync", "--logger", "csv", "--logger", "tensorboard"]
    result = CliRunner().invoke(app, [str(word) for word in (*words, *TINY)])
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.fixture
def copy_of_run(first_run, tmp_path):
    return shutil.copytree(first_run[0], tmp_path / "copy")


def test_the_folder_holds_what_the_manual_lists(first_run):
    folder, _ = first_run
    files = {path.name for path in folder.iterdir()}
    assert files >= {
        "config.yaml",
        "metrics.jsonl",
        "accuracy_matrix.csv",
        "summary.json",
        "environment.json",
        "log.txt",
        "checkpoints",
        "model.pt",
        "report.html",
        "storage",
        "csv",
        "tensorboard",
        *(f"{name}.png" for name in PLOT_NAMES),
    }
    assert not [name for name in files if name.endswith(".tmp")]


def test_the_summary_has_every_key_and_adds_up(first_run):
    folder, _ = first_run
    summary = summary_of(folder)
    assert summary.keys() >= KEYS
    matrix = np.array(summary["accuracy_matrix"])
    assert matrix.shape == (5, 5)
    assert np.isfinite(matrix).all()
    scores = metrics.score(matrix, np.array(summary["test_samples"]))
    for key in ("average_accuracy", "final_accuracy", "forgetting", "bwt"):
        assert summary[key] == pytest.approx(getattr(scores, key))
    swaps = summary["swaps"]
    assert swaps["requested"] == sum(swaps[outcome] for outcome in OUTCOMES)
    assert swaps["done"] > 0
    assert summary["storage_records"] == 240
    assert summary["storage_bytes"] >= summary["storage_live_bytes"] > 0
    assert 0 < summary["ram_bytes"] <= summary["ram_bytes_peak"] < 2 * summary["ram_bytes"]
    assert 20 < summary["distinct_samples_replayed"] <= 240
    assert 0 < sum(summary["times"].values()) <= summary["seconds"]
    assert summary["samples_per_second"] > 0
    assert summary["iterations"] == 5 * 2 * 3
    assert summary["problems"] == []


def test_the_csv_is_the_matrix_with_the_untrained_model_on_top(first_run):
    folder, _ = first_run
    rows = list(csv.reader((folder / "accuracy_matrix.csv").read_text().splitlines()))
    assert [row[0] for row in rows[1:]] == ["0", "1", "2", "3", "4", "5"]
    assert [[float(v) for v in row[1:]] for row in rows[2:]] == summary_of(folder)[
        "accuracy_matrix"
    ]


def test_the_saved_config_is_resolved_and_starts_the_same_run(first_run, carousel, tmp_path):
    folder, _ = first_run
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["experiences"], config["memory_size"], config["sync"]) == (5, 20, True)
    assert (config["admission"], config["strategy.loss"]) == ("class-balanced", "ce")
    resolve_config(file=config)
    again = tmp_path / "again"
    result = carousel("train", "--config", folder / "config.yaml", "--out", again, "--quiet")
    assert result.exit_code == 0, result.output
    assert_same_run(folder, again)


def test_the_environment_tells_how_to_repeat_it(first_run):
    environment = json.loads((first_run[0] / "environment.json").read_text())
    assert environment.keys() >= {"command", "seed", "threads", "python", "packages", "device"}
    assert environment["packages"]["torch"] == torch.__version__.partition("+")[0]


def test_metrics_show_the_course_of_the_run(first_run):
    lines = read_lines(first_run[0] / "metrics.jsonl")
    events = [line["event"] for line in lines]
    assert events[0] == "start"
    assert events.count("experience") == 5
    progress = [line for line in lines if line["event"] == "progress"]
    assert [line["iteration"] for line in progress] == sorted(
        line["iteration"] for line in progress
    )
    assert {"load", "replay", "swap", "step"} <= progress[-1]["times"].keys()
    assert {"loss", "accuracy", "swaps", "ram_bytes", "storage_bytes"} <= progress[-1].keys()


def test_the_report_stands_alone(first_run):
    page = (first_run[0] / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(PLOT_NAMES)
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_the_extra_loggers_have_the_numbers(first_run):
    folder, _ = first_run
    rows = list(csv.DictReader((folder / "csv" / "progress.csv").read_text().splitlines()))
    assert {"step", "loss", "swaps/done"} <= rows[0].keys()
    assert list((folder / "tensorboard").iterdir())


def test_what_the_terminal_says(first_run):
    folder, result = first_run
    assert result.stdout.startswith("carousel 0.1.0 · er on split-digits")
    for words in (
        "experience 5/5 learned",
        "Accuracy matrix",
        "final accuracy",
        "done",
        "distinct",
    ):
        assert words in result.stdout, words
    assert str(folder / "report.html") in result.stdout


def test_eval_gives_the_last_row_of_the_matrix(first_run, carousel):
    folder, _ = first_run
    found = json.loads(carousel("eval", folder, "--json").stdout)
    assert found["accuracies"] == summary_of(folder)["accuracy_matrix"][-1]
    assert found["final_accuracy"] == pytest.approx(summary_of(folder)["final_accuracy"])
    assert "over all classes" in carousel("eval", folder).stdout


def test_eval_refuses_what_does_not_fit(first_run, carousel, tmp_path):
    result = carousel("eval", tmp_path)
    assert result.exit_code == 2
    assert "model.pt" in result.stderr
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 1, 6, 6), dtype=np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "other.npz", x=x, y=y)
    result = carousel("eval", first_run[0], "--benchmark", f"npz:{tmp_path / 'other.npz'}")
    assert result.exit_code == 2
    assert "does not take" in result.stderr


def test_report_rebuilds_pictures_and_page(copy_of_run, carousel):
    for name in ("report.html", "swaps.png"):
        (copy_of_run / name).unlink()
    result = carousel("report", copy_of_run)
    assert result.exit_code == 0
    assert (copy_of_run / "swaps.png").is_file()
    assert "data:image/png" in (copy_of_run / "report.html").read_text()
    assert carousel("report", copy_of_run / "storage").exit_code == 2


def test_resuming_a_finished_run_prints_its_summary(copy_of_run, carousel):
    before = (copy_of_run / "summary.json").read_bytes()
    result = carousel("train", "--resume", "--out", copy_of_run, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == summary_of(copy_of_run)
    assert (copy_of_run / "summary.json").read_bytes() == before
    assert result.stderr == ""
    assert "finished" in carousel("train", "--resume", "--out", copy_of_run).stdout


def test_a_run_in_the_way_is_kept_unless_fresh_is_asked_for(copy_of_run, first_run, carousel):
    refused = carousel("train", "--out", copy_of_run)
    assert refused.exit_code == 2
    assert "--resume, --fresh or another --out" in refused.stderr
    result = carousel("train", "--out", copy_of_run, "--sync", "--fresh", "--quiet", *TINY)
    assert result.exit_code == 0, result.output
    assert_same_run(first_run[0], copy_of_run)


def test_resuming_nothing_starts_and_says_so(carousel, tmp_path):
    words = ("--resume", "--out", tmp_path / "new", "--experiences", 2)
    result = carousel("train", *words, *TINY)
    assert result.exit_code == 0, result.output
    assert "nothing to resume" in result.stdout
    assert len(summary_of(tmp_path / "new")["accuracy_matrix"]) == 2


def test_no_swap_keeps_the_swaps_at_zero(carousel, tmp_path):
    result = carousel("train", "--no-swap", "--json", "--out", tmp_path / "r", *TINY)
    summary = json.loads(result.stdout)
    assert set(summary["swaps"].values()) == {0}
    assert summary["storage_records"] == 240
    assert summary["distinct_samples_replayed"] > 0


@pytest.mark.parametrize("strategy", ["naive", "joint"])
def test_the_bounds_run_without_a_memory(carousel, tmp_path, strategy):
    words = ("--strategy", strategy, "--json", "--out", tmp_path / "r")
    summary = json.loads(carousel("train", *words, *TINY).stdout)
    assert set(summary["swaps"].values()) == {0}
    assert summary["ram_bytes"] == summary["storage_bytes"] == 0
    assert not (tmp_path / "r" / "storage").exists()
    if strategy == "naive":
        assert summary["forgetting"] > 0.3
    else:
        assert summary["final_accuracy"] > 0.5


def test_json_prints_the_summary_and_nothing_else(carousel, tmp_path):
    result = carousel("train", "--json", "--out", tmp_path / "r", "--experiences", 2, *TINY)
    assert json.loads(result.stdout) == summary_of(tmp_path / "r")
    assert result.stderr == ""


def test_quiet_prints_one_line(carousel, tmp_path):
    result = carousel("train", "--quiet", "--out", tmp_path / "r", "--experiences", 2, *TINY)
    assert result.stdout.count("\n") == 1
    assert "final accuracy" in result.stdout


def test_settings_from_file_flags_and_set(carousel, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("epochs: 1\nlr: 0.5\nlimit: 24\nmodel: mlp\nexperiences: 2\nsync: true\n")
    words = ("--config", file, "--lr", 0.25, "--set", "strategy.loss=bce", "--set", "gate=random")
    storage, out = tmp_path / "elsewhere", tmp_path / "r"
    words += ("--memory-size", "64KiB", "--storage", storage, "--storage-budget", 30)
    result = carousel("train", *words, "--out", out, "--quiet")
    assert result.exit_code == 0, result.output
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["lr"], config["epochs"], config["gate"]) == (0.25, 1, "random")
    assert (config["strategy.loss"], config["memory_size"]) == ("bce", "64KiB")
    assert not (out / "storage").exists()
    assert summary_of(out)["ram_bytes"] <= 64 * 1024
    with LMDBTier(storage, readonly=True) as tier:
        assert tier.stats().records <= 30


@pytest.mark.parametrize(("update", "replay"), [("experience", "mixed"), ("batch", "concat")])
def test_every_way_to_replay(carousel, tmp_path, update, replay):
    words = ("--update", update, "--replay", replay, "--admission", "reservoir", "--quiet")
    result = carousel("train", *words, "--experiences", 3, "--out", tmp_path / "r", *TINY)
    assert result.exit_code == 0, result.output
    assert summary_of(tmp_path / "r")["swaps"]["done"] > 0


def test_domains_instead_of_classes(carousel, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (120, 1, 6, 6), dtype=np.uint8), np.arange(120) % 4
    np.savez(tmp_path / "own.npz", x=x, y=y, group=np.arange(120) // 4 % 6)
    words = ("--benchmark", f"npz:{tmp_path / 'own.npz'}", "--scenario", "domain")
    words += ("--experiences", 3, "--out", tmp_path / "r", "--json", *TINY)
    result = carousel("train", *words)
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["accuracy_matrix"]) == 3
