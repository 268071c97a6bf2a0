"""`carousel compare` from its command line to its report; the runs are processes as for a user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from carousel.cli.app import app
from carousel.runs.folder import RunFolder, read_lines

TINY = ("--set", "limit=20", "--set", "model=mlp", "--set", "epochs=1", "--set", "device=cpu")
GRID = ("compare", "--strategies", "er", "--no-bounds", "--seeds", "1", "--jobs", "2", *TINY)
DEADLINE = 120.0


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """One small study that many tests look at."""
    out = tmp_path_factory.mktemp("compare") / "study"
    result = CliRunner().invoke(app, [*GRID, "--out", str(out)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return out, result.output


@pytest.fixture
def copy_of_study(study, tmp_path):
    return shutil.copytree(study[0], tmp_path / "copy")


def runs_of(out: Path) -> list[Path]:
    return sorted((out / "runs").iterdir())


def test_the_folder_holds_what_the_manual_lists(study):
    out, text = study
    assert {path.name for path in out.iterdir()} == {
        *("study.yaml", "environment.json", "results.json", "results.csv", "table.tex"),
        *("report.html", "accuracy.png", "gain.png", "curves.png", "runs", "logs"),
    }
    plain, swap = runs_of(out)
    assert plain.name.startswith("er-plain-seed0-")
    assert swap.name.startswith("er-swap-seed0-")
    assert "[2/2] er with" in text
    assert f"report: {out / 'report.html'}" in text
    environment = json.loads((out / "environment.json").read_text())
    assert environment["packages"]["torch"]


def test_a_run_of_a_study_is_an_ordinary_run_without_its_storage(study, carousel):
    run = runs_of(study[0])[1]
    assert RunFolder(run).finished
    assert not (run / "storage").exists()
    assert not list((run / "checkpoints").glob("*.pt"))
    assert carousel("eval", run, "--device", "cpu").exit_code == 0


def test_a_study_that_is_done_trains_nothing(copy_of_study, carousel):
    before = {path: path.stat().st_mtime_ns for path in copy_of_study.rglob("runs/*/*")}
    result = carousel(*GRID, "--out", copy_of_study, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["lines"][0]["strategy"] == "er"
    assert {path: path.stat().st_mtime_ns for path in copy_of_study.rglob("runs/*/*")} == before


def test_the_saved_study_repeats_it(copy_of_study, carousel):
    before = (copy_of_study / "results.csv").read_text()
    result = carousel(
        "compare", "--config", copy_of_study / "study.yaml", "--out", copy_of_study, "--quiet"
    )
    assert result.exit_code == 0, result.output
    assert (copy_of_study / "results.csv").read_text() == before


def test_report_rebuilds_everything(copy_of_study, carousel):
    names = ("results.json", "results.csv", "table.tex", "report.html", "gain.png")
    before = {name: (copy_of_study / name).read_bytes() for name in names}
    for name in names:
        (copy_of_study / name).unlink()
    result = carousel("report", copy_of_study)
    assert result.exit_code == 0, result.output
    assert "er " in result.output
    assert {name: (copy_of_study / name).read_bytes() for name in names} == before
    found = json.loads(carousel("report", copy_of_study, "--json").stdout)
    assert set(found["pictures"]) == {"accuracy", "gain", "curves"}


def test_one_run_that_fails_is_reported_and_stops_no_other(carousel, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "runs" / "study"))
    words = ("compare", "--strategies", "er", "--no-bounds", "--swap", "off", "--seeds", "2")
    model = ("--set", "model=study_models:moody", "--keep-storage")
    tiny = (*TINY[:2], *TINY[4:])
    result = carousel(*words, *tiny, *model, "--out", tmp_path / "s", width=200)
    assert result.exit_code == 1, result.output
    good, bad = runs_of(tmp_path / "s")
    last = result.stderr.splitlines()
    assert last[-1] == "carousel: 1 of 2 runs failed"
    assert f"{bad.name}: RuntimeError: not today (see {bad / 'log.txt'})" in last[-2]
    assert RunFolder(good).finished
    assert (good / "storage").is_dir()
    assert "1 of its runs failed" in (tmp_path / "s" / "report.html").read_text()
    assert carousel("report", tmp_path / "s").exit_code == 0
    assert "not today" in (tmp_path / "s" / "results.csv").read_text()


LONG = (
    *("compare", "--strategies", "er", "--no-bounds", "--seeds", "1", "--swap", "on"),
    *("--set", "limit=20", "--set", "model=mlp", "--set", "device=cpu", "--set", "epochs=100"),
    *("--set", "experiences=2", "--set", "checkpoint_every=10", "--set", "batch_size=16"),
)


def wait_for(condition) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def steps_of(out: Path) -> int:
    """Steps that the newest checkpoint of the only run holds."""
    files = out.glob("runs/*/checkpoints/*.pt")
    return max((int(path.stem.rpartition("-")[2]) for path in files), default=0)


def start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "carousel", *LONG, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.timeout(300)
def test_after_ctrl_c_and_after_a_kill_the_same_command_goes_on(carousel, tmp_path):
    out = tmp_path / "study"

    def press_ctrl_c() -> None:
        wait_for(lambda: steps_of(out))
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press_ctrl_c)
    presser.start()
    result = carousel(*LONG, "--out", out)
    presser.join()
    assert result.exit_code == 130, result.output
    assert "goes on where it was" in result.stderr
    stopped = steps_of(out)
    assert "0 of 1 runs done" in (out / "report.html").read_text()

    killed = start(out)
    wait_for(lambda: steps_of(out) > stopped or killed.poll() is not None)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL

    # at once, while the orphan may be writing its last checkpoint
    result = carousel(*LONG, "--out", out)
    assert result.exit_code == 0, result.output
    (run,) = runs_of(out)
    resumed = [line for line in read_lines(run / "metrics.jsonl") if line["event"] == "resume"]
    assert len(resumed) == 2
    assert RunFolder(run).finished


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--strategies", "err"), "unknown strategy 'err': did you mean er?"),
        ((), "no strategies are named"),
        (("--strategies", "er", "--seeds", "0"), "seeds is '0'"),
        (("--strategies", "er", "--swap", "yes"), "swap is 'yes'"),
        (("--strategies", "er", "--jobs", "0"), "jobs is 0"),
        (("--strategies", "er", "--set", "swap_ration=1,2"), "did you mean swap_ratio?"),
        (("--strategies", "er", "--set", "seed=3"), "use --seeds"),
        (("--strategies", "er", "--benchmark", "split-digit"), "did you mean split-digits?"),
        (("--strategies", "er", "--set", "gate=balanced,balancd"), "er: unknown gate 'balancd'"),
        (("--strategies", "er", "--set", "strategy.los=bce"), "did you mean loss?"),
        (("--strategies", "bic", "--set", "memory_size=20,5"), "bic: "),
        (("--config", "er-digits", "--defaults"), "--config and --defaults are both given"),
        (("--config", "./absent.yaml"), "absent.yaml cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    carousel, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    result = carousel("compare", *words, "--out", "study")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_files_is_left_alone(carousel, tmp_path):
    (tmp_path / "thesis.tex").touch()
    result = carousel(*GRID, "--out", tmp_path)
    assert result.exit_code == 2
    assert "holds other files" in result.stderr
    assert carousel("report", tmp_path).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
