from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from carousel.errors import BadInputError, ForeignStorageError, StorageLockedError
from carousel.runs.config import resolve_config
from carousel.runs.folder import RunFolder
from carousel.runs.launch import plan_launch
from carousel.storage.owner import MARKER


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def started(path, **settings) -> RunFolder:
    folder = RunFolder(path)
    folder.create(resolve_config(command_line=settings))
    return folder


def with_samples(path) -> None:
    path.mkdir(parents=True)
    (path / MARKER).write_text("{}")
    (path / "data.mdb").write_bytes(b"samples")


def tree(path) -> list[str]:
    return sorted(str(p) for p in path.rglob("*"))


def test_the_default_place(tmp_path):
    launch = plan_launch()
    assert launch.action == "start"
    assert launch.folder.path.parent.name == "runs"
    assert launch.storage == launch.folder.path / "storage"
    assert tree(tmp_path) == []


def test_out_is_the_folder_itself(tmp_path):
    launch = plan_launch(command_line={"out": tmp_path / "a"})
    assert launch.folder.path == tmp_path / "a"


def test_a_run_in_the_way_is_refused_with_the_ways_out(tmp_path):
    started(tmp_path / "a")
    with pytest.raises(BadInputError, match=r"cut short: give --resume, --fresh or another --out"):
        plan_launch(command_line={"out": tmp_path / "a"})


def test_foreign_files_are_never_touched(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").touch()
    for fresh, resume in ((False, False), (True, False), (False, True)):
        with pytest.raises(BadInputError, match="other files"):
            plan_launch(command_line={"out": tmp_path / "a"}, fresh=fresh, resume=resume)
        with pytest.raises(ForeignStorageError, match="did not make"):
            plan_launch(command_line={"storage": tmp_path / "a"}, fresh=fresh, resume=resume)
    assert (tmp_path / "a" / "thesis.tex").exists()


def test_samples_in_the_way_are_refused_with_the_ways_out(tmp_path):
    with_samples(tmp_path / "db")
    with pytest.raises(BadInputError, match="give --resume, --fresh or another --storage"):
        plan_launch(command_line={"storage": tmp_path / "db"})
    assert plan_launch(command_line={"storage": tmp_path / "db"}, resume=True).action == "start"


def test_fresh_discards_the_run_and_its_samples_only(tmp_path):
    folder = started(tmp_path / "a")
    folder.write_summary({})
    with_samples(tmp_path / "db")
    (tmp_path / "db" / "mine.txt").touch()
    launch = plan_launch(command_line={"out": tmp_path / "a", "storage": "db"}, fresh=True)
    assert folder.finished
    launch.clear_the_way()
    assert tree(tmp_path / "a") == []
    assert [p.name for p in (tmp_path / "db").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("way", [{"fresh": True}, {"resume": True}])
def test_samples_of_another_run_are_left_alone(tmp_path, way):
    started(tmp_path / "a")
    with_samples(tmp_path / "a" / "storage")
    given = {"out": tmp_path / "b", "storage": tmp_path / "a" / "storage"}
    with pytest.raises(BadInputError, match=f"belongs to the run in {tmp_path / 'a'}"):
        plan_launch(command_line=given, **way)
    assert plan_launch(command_line={"out": tmp_path / "a"}, **way).action


def test_fresh_leaves_samples_that_another_process_writes(tmp_path):
    with_samples(tmp_path / "db")
    hold = (
        "from pathlib import Path; from carousel.storage.owner import OwnerLock; "
        f"lock = OwnerLock(Path({str(tmp_path / 'db')!r})); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        other.stdout.readline()
        with pytest.raises(StorageLockedError) as caught:
            plan_launch(command_line={"storage": tmp_path / "db"}, fresh=True)
        assert caught.value.owner_pid == other.pid
        other.stdin.close()
    assert (tmp_path / "db" / "data.mdb").exists()


def test_the_usual_storage_may_be_named_when_resuming(tmp_path, monkeypatch):
    started(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    for name in ("a/storage", "a/../a/storage", tmp_path / "a" / "storage"):
        launch = plan_launch(command_line={"out": "a", "storage": name}, resume=True)
        assert launch.action == "resume"
    with pytest.raises(BadInputError, match="storage is "):
        plan_launch(command_line={"out": "a", "storage": "b"}, resume=True)


def test_resuming_takes_the_settings_of_the_run(tmp_path):
    started(tmp_path / "a", lr=0.25, seed=3)
    launch = plan_launch(
        command_line={"out": tmp_path / "a", "seed": 3, "device": "cpu"}, resume=True
    )
    assert launch.action == "resume"
    assert (launch.config.lr, launch.config.seed, launch.config.device) == (0.25, 3, "cpu")


@pytest.mark.parametrize("change", [{"lr": 0.5}, {"strategy.loss": "bce"}, {"batch-size": 4}])
def test_resuming_with_other_settings_is_refused(tmp_path, change):
    started(tmp_path / "a", lr=0.25)
    with pytest.raises(BadInputError, match="was started with"):
        plan_launch(command_line={"out": tmp_path / "a", **change}, resume=True)


def test_a_run_is_resumed_from_another_working_folder(tmp_path, monkeypatch):
    started(tmp_path / "a", storage="db", data_root="data")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    launch = plan_launch(command_line={"out": tmp_path / "a"}, resume=True)
    assert launch.storage == tmp_path / "db"
    assert launch.config.data_root == tmp_path / "data"


def test_resuming_nothing_starts_and_says_so(tmp_path):
    for out in ("absent", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        launch = plan_launch(command_line={"out": tmp_path / out}, resume=True)
        assert launch.action == "start"
        assert "nothing to resume" in launch.notes[0]


def test_resuming_a_finished_run_shows_it(tmp_path):
    started(tmp_path / "a").write_summary({"final_accuracy": 1.0})
    assert plan_launch(command_line={"out": tmp_path / "a"}, resume=True).action == "show"


def test_resume_without_out_finds_the_newest_run_that_fits(tmp_path):
    for name, lr in (("2026-01-01-er-split-digits", 0.5), ("2026-01-02-er-split-digits", 0.25)):
        started(tmp_path / "runs" / name, lr=lr)
    started(tmp_path / "runs" / "2026-01-03-naive-split-digits", strategy="naive", lr=0.5)
    assert plan_launch(resume=True).folder.path.name == "2026-01-02-er-split-digits"
    launch = plan_launch(command_line={"lr": 0.5}, resume=True)
    assert launch.folder.path.name == "2026-01-01-er-split-digits"
    launch = plan_launch(command_line={"lr": 0.75}, resume=True)
    assert launch.action == "start"


def test_resume_and_fresh_exclude_each_other():
    with pytest.raises(BadInputError, match="both given"):
        plan_launch(resume=True, fresh=True)


@pytest.mark.parametrize("key", ["out", "storage"])
def test_a_path_through_a_file_is_refused(tmp_path, key):
    (tmp_path / "file").write_text(json.dumps({}))
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInputError, match=f"--{key} .* leads through the file"):
            plan_launch(command_line={key: path})


@pytest.mark.parametrize("key", ["out", "storage"])
def test_an_unwritable_path_is_refused(tmp_path, key, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BadInputError, match="cannot be written"):
        plan_launch(command_line={key: tmp_path / "a"})
