"""`carousel configs`: the settings that come with the package, and starting with one of them."""

from __future__ import annotations

import json

from carousel.runs.folder import RunFolder
from carousel.runs.shipped import shipped_path


def test_ls_shows_every_file_on_a_line(carousel):
    lines = carousel("configs", "ls").stdout.splitlines()
    assert lines[0].split() == ["name", "method", "benchmark", "memory", "note"]
    assert len({line.split()[0] for line in lines}) == len(lines)
    (line,) = [line for line in lines if line.startswith("er-cifar100 ")]
    assert " ".join(line.split()) == "er-cifar100 er split-cifar100 2,000 paper, 70 epochs"


def test_ls_as_json(carousel):
    found = json.loads(carousel("configs", "ls", "--json").stdout)["configs"]
    (entry,) = [entry for entry in found if entry["name"] == "derpp-cifar10"]
    assert entry == {
        "name": "derpp-cifar10",
        "strategy": "der++",
        "benchmark": "split-cifar10",
        "memory_size": 500,
        "note": "paper, 50 epochs",
    }


def test_cat_prints_the_file(carousel):
    assert carousel("configs", "cat", "rm-cifar10").stdout == shipped_path("rm-cifar10").read_text()


def test_cp_copies_and_overwrites_only_when_told(carousel, tmp_path):
    target = tmp_path / "mine.yaml"
    assert carousel("configs", "cp", "er-digits", target).exit_code == 0
    assert target.read_text() == shipped_path("er-digits").read_text()
    target.write_text("epochs: 1\n")
    refused = carousel("configs", "cp", "er-digits", target)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert target.read_text() == "epochs: 1\n"
    assert carousel("configs", "cp", "er-digits", target, "--force").exit_code == 0
    assert "memory_size" in target.read_text()


def test_cp_into_a_folder_keeps_the_name(carousel, tmp_path):
    assert carousel("configs", "cp", "er-digits.yaml", tmp_path).exit_code == 0
    assert (tmp_path / "er-digits.yaml").is_file()
    missing = carousel("configs", "cp", "er-digits", tmp_path / "no" / "x.yaml")
    assert missing.exit_code == 2
    assert "make it first" in missing.stderr


def test_mistakes_are_one_line(carousel):
    for words in (("cat", "er-cifar10"), ("cp", "er-cifar10", "x"), ("cat",), ("lss",)):
        result = carousel("configs", *words)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
    assert "did you mean er-cifar100?" in carousel("configs", "cat", "er-cifar10").stderr
    assert "did you mean derpp-digits?" in carousel("configs", "cat", "DERPP-digits").stderr


def test_a_file_that_is_not_there_is_not_taken_for_a_name_alone(carousel):
    for command in (("train",), ("compare", "--strategies", "er")):
        said = carousel(*command, "--config", "missing.yaml").stderr
        assert "there is no file missing.yaml here, and no configuration" in said


def test_without_a_command_the_help_is_shown(carousel):
    result = carousel("configs")
    assert result.exit_code == 0
    assert all(word in result.stdout for word in ("ls", "cat", "cp"))


def test_a_run_starts_from_a_shipped_name_and_the_command_line_wins(carousel, tmp_path):
    words = ("--config", "er-digits", "--limit", 10, "--epochs", 2, "--out", tmp_path / "a")
    settings = ("--augment", "crop", "--lr-milestones", "1", "--class-order", "sorted")
    result = carousel("train", *words, *settings, "--sync", "--quiet")
    assert result.exit_code == 0, result.output
    config = RunFolder(tmp_path / "a").read_config()
    assert (config.memory_size, config.epochs, config.lr_milestones) == (20, 2, (1,))
    assert (config.augment, config.class_order) == ("crop", "sorted")
    repeated = ("--config", tmp_path / "a" / "config.yaml", "--out", tmp_path / "b")
    assert carousel("train", *repeated, "--storage", tmp_path / "s", "--quiet").exit_code == 0
    one, other = (RunFolder(tmp_path / name).read_summary() for name in ("a", "b"))
    assert one["accuracy_matrix"] == other["accuracy_matrix"]


def test_a_misspelt_name_is_refused_before_anything_is_made(carousel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = carousel("train", "--config", "er-digit")
    assert result.exit_code == 2
    assert "did you mean er-digits?" in result.stderr
    assert list(tmp_path.iterdir()) == []
