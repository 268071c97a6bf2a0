from __future__ import annotations

import json
from datetime import datetime

import numpy as np
import pytest

from carousel.errors import BadInputError
from carousel.runs.config import resolve_config
from carousel.runs.folder import (
    MetricsLog,
    RunFolder,
    default_run_path,
    read_lines,
    run_suffix,
    write_atomically,
)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def test_nothing_exists_before_create(folder):
    assert folder.empty
    assert not folder.started
    assert not folder.path.exists()
    folder.create(resolve_config(command_line={"lr": 0.5}))
    assert folder.started
    assert not folder.finished
    assert folder.read_config().lr == 0.5


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="cannot be made"):
        RunFolder(tmp_path / "file" / "run").create(resolve_config())


def test_the_matrix_comes_back_to_the_last_bit(folder):
    folder.create(resolve_config())
    matrix = np.full((3, 3), np.nan)
    matrix[:2] = np.random.default_rng(0).random((2, 3))
    untrained = np.array([0.1, 1 / 3, 0.0])
    assert folder.read_matrix() is None
    folder.write_matrix(matrix, untrained)
    again, start = folder.read_matrix()
    np.testing.assert_array_equal(again, matrix)
    np.testing.assert_array_equal(start, untrained)


def test_metrics_survive_a_kill_in_the_middle_of_a_line(folder):
    folder.create(resolve_config())
    log = MetricsLog(folder.metrics_file)
    log.write({"event": "progress", "iteration": 1})
    log.write({"event": "progress", "iteration": 2})
    log.close()
    with folder.metrics_file.open("a") as file:
        file.write('{"event": "progress", "iter')
    assert [line["iteration"] for line in read_lines(folder.metrics_file)] == [1, 2]
    log = MetricsLog(folder.metrics_file)
    log.write({"event": "resume", "iteration": 1, "experiences": 0})
    log.close()
    assert [line["event"] for line in read_lines(folder.metrics_file)] == [
        "progress",
        "progress",
        "resume",
    ]
    assert all(json.loads(line) for line in folder.metrics_file.read_text().splitlines())


def test_a_record_tells_what_still_holds(folder):
    folder.create(resolve_config(command_line={"experiences": 4}))
    log = MetricsLog(folder.metrics_file)
    for iteration in (1, 2):
        log.write({"event": "progress", "iteration": iteration})
    log.write({"event": "resume", "iteration": 1, "experiences": 0})
    log.close()
    record = folder.record()
    assert record.matrix.shape == (4, 4)
    assert [s["iteration"] for s in record.progress()] == [1]
    assert record.summary == {}
    folder.write_summary({"final_accuracy": 0.5})
    assert folder.finished
    assert folder.record().summary == {"final_accuracy": 0.5}


def test_a_folder_without_a_run_has_no_record(tmp_path):
    with pytest.raises(BadInputError, match="not a run folder"):
        RunFolder(tmp_path).record()


def test_clear_removes_the_run_and_nothing_else(folder):
    folder.create(resolve_config())
    folder.write_summary({})
    folder.storage.mkdir()
    (folder.storage / "data.mdb").touch()
    (folder.checkpoints / "000.pt").touch()
    (folder.path / "notes.md").touch()
    (folder.path / "swaps.png").touch()
    folder.clear()
    assert {p.name for p in folder.path.iterdir()} == {"storage", "notes.md"}
    assert (folder.storage / "data.mdb").exists()


def test_default_paths_are_told_apart_and_safe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 1, 2, 3, 4, 5)
    first = default_run_path("er", "folder:/a b/c", now)
    assert str(first) == "runs/2026-01-02-030405-er-folder-c"
    first.mkdir(parents=True)
    assert default_run_path("er", "folder:/a b/c", now).name.endswith("-2")


def test_an_atomic_write_leaves_no_scrap(tmp_path):
    write_atomically(tmp_path / "a.json", "one")
    write_atomically(tmp_path / "a.json", "two")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "two"


@pytest.mark.parametrize(
    ("benchmark", "name"),
    [
        ("split-digits", "er-split-digits"),
        ("npz:../../data/my set.npz", "er-npz-my-set"),
        ("folder:/home/me/pictures/", "er-folder-pictures"),
        ("folder:~/a.b/..", None),
    ],
)
def test_a_default_name_holds_no_pieces_of_a_path(benchmark, name):
    found = run_suffix("er", benchmark)
    assert found == name or (name is None and "." not in found)
