"""The command line as a new user meets it: help, version, mistakes, and what it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import carousel as package
from carousel.cli.app import app

COMMANDS = [command.name for command in app.registered_commands]


def test_version(carousel):
    assert carousel("--version").stdout == f"carousel {package.__version__}\n"


def test_no_words_show_the_help(carousel):
    result = carousel()
    assert result.exit_code == 0
    assert all(command in result.stdout for command in ("train", "inspect", "benchmarks"))


@pytest.mark.parametrize("words", [["--help"], *([command, "-h"] for command in COMMANDS)])
def test_every_command_has_a_help(carousel, words):
    result = carousel(*words)
    assert result.exit_code == 0
    assert "Usage: carousel" in result.stdout
    assert "<bool>" not in result.stdout
    assert "list[" not in result.stdout


def test_paragraphs_of_the_help_flow(carousel):
    result = carousel("verify", "-h", width=200)
    assert "Damaged samples are set aside and never served, unless another" in result.stdout
    text = carousel("import", "-h", width=200).stdout
    lines = [line.strip() for line in text.split("Arguments")[0].splitlines() if line.strip()]
    assert all(line.endswith((".", "]", "PATH", "}", "─", "╭─")) for line in lines), lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "train"),
        (["train", "--memroy-size", "5"], "--memory-size"),
        (["train", "--epochs", "many"], "epochs is 'many'"),
        (["inspect"], "path"),
    ],
)
def test_mistakes_are_one_line_with_exit_code_2(carousel, words, said):
    result = carousel(*words)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert said in result.stderr.replace("PATH", "path")


def test_a_failure_is_one_line_with_exit_code_1(carousel, monkeypatch, tmp_path):
    def fail(*_: object) -> None:
        raise RuntimeError("it\nbroke")

    monkeypatch.setattr("carousel.storage.maintenance.verify_store", fail)
    result = carousel("verify", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("carousel: RuntimeError: it broke")
    assert result.stderr.count("\n") == 1
    monkeypatch.setenv("CAROUSEL_DEBUG", "1")
    assert "Traceback" in carousel("verify", tmp_path).stderr


def test_ctrl_c_is_130(carousel, monkeypatch, tmp_path):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("carousel.storage.maintenance.verify_store", interrupt)
    assert carousel("verify", tmp_path).exit_code == 130


LIGHT = """
import sys
sys.argv = ["carousel", *{words}]
from carousel.cli import main
try:
    main()
except SystemExit as end:
    assert end.code in (0, 2), end.code
heavy = {{"torch", "torchvision", "avalanche", "matplotlib", "sklearn"}} & set(sys.modules)
assert not heavy, heavy
"""


def run_light(words):
    """Run the command line in a process that fails if anything heavy was loaded."""
    return subprocess.run(
        [sys.executable, "-c", LIGHT.format(words=words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_help_version_and_lists_import_nothing_heavy():
    for words in (
        ["train", "--help"],
        ["--version"],
        ["benchmarks"],
        ["strategies"],
        ["train", "--swap-ratio", "7"],
        ["train", "--strategy", "err"],
        ["train", "--gate", "ballanced"],
        ["train", "--admission", "rink"],
        ["train", "--model", "cnnn"],
        ["train", "--memory-size", "0"],
        ["train", "--memory-size", "999TiB"],
        ["train", "--device", "gpu"],
        ["train", "--set", "strategy.los=bce"],
        ["train", "--set", "strategy.loss=mse"],
        ["train", "--benchmark", "folder:nope"],
        ["train", "--benchmark", "npz:nope"],
        ["train", "--benchmark", "nope"],
        ["train", "--storage-budget", "0"],
        ["train", "--storage-budget", "1KiB"],
        ["forget", "nowhere", "--all"],
    ):
        done = run_light(words)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_looking_at_a_storage_loads_no_torch(store, command):
    done = run_light([command, str(store)])
    assert done.returncode == 0, done.stderr


def test_benchmarks_lists_what_is_here_and_how_to_get_the_rest(carousel):
    found = json.loads(carousel("benchmarks", "--json").stdout)["benchmarks"]
    by_name = {info["name"]: info for info in found}
    assert by_name["split-digits"]["available"]
    assert all(info["available"] or info["how_to_get"] for info in found)
    text = carousel("benchmarks").stdout
    assert all(name in text for name in by_name)
    assert "folder:PATH" in text


NO_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "avalanche", "sklearn"):
            raise ImportError(f"{name} is wanted already")
sys.meta_path.insert(0, Refuse())
sys.argv = ["carousel", "train", "--out", "r"]
from carousel.cli import main
main()
"""


def test_the_first_line_comes_before_the_heavy_imports(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == (
        f"carousel {package.__version__} · er on split-digits · loading torch and Avalanche ...\n"
    )
    assert "is wanted already" in done.stderr
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == []
