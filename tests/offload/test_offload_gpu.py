"""The script for a GPU, kept alive on the CPU: all parts run, one that fails stops no other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run(*arguments, path=""):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{path}"},
        capture_output=True,
        text=True,
        check=False,
    )


def rows_of(file):
    return {row["metric"]: row for row in json.loads(file.read_text())}


def test_all_parts_run_with_small_sizes(tmp_path):
    file = tmp_path / "found.json"
    options = ("--smoke", "--folder", tmp_path, "--json", file)
    done = run("-m", "benchmarks.offload_gpu", *options)
    assert done.returncode == 0, done.stderr
    rows = rows_of(file)
    parts = dict.fromkeys(metric.partition(":")[0] for metric in rows)
    assert " ".join(parts) == "probe equality model largest overlap storage allocator"
    equal = [row for metric, row in rows.items() if metric.endswith("are the same")]
    assert len(equal) == 8
    assert all(row["met"] for row in equal)
    assert all(row["met"] for metric, row in rows.items() if metric.startswith("allocator"))
    assert rows["overlap: bytes moved a parameter and step"]["met"]
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


PARTS = """
import os, time
from benchmarks._harness import Row
from benchmarks._offload_gpu import UnequalError

def killed(scale, folder):
    yield Row("begun", 1)
    os.kill(os.getpid(), 9)

def unequal(scale, folder):
    yield Row("begun", 1)
    raise UnequalError("values were not the same")

def endless(scale, folder):
    yield Row("begun", 1)
    time.sleep(600)

def missed(scale, folder):
    yield Row.at_least("slow", 1, 2)
"""

MAIN = """
from benchmarks import offload_gpu as script
limits = {"killed": 120, "unequal": 120, "endless": 6, "missed": 120}
script.PARTS.clear()
script.PARTS.update({name: script.Part(f"parts:{name}", s) for name, s in limits.items()})
script.main()
"""


def test_a_part_that_fails_stops_no_other_and_loses_nothing(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    done = run("-c", MAIN, "--smoke", "--json", tmp_path / "found.json", path=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "failed: killed, unequal, endless"
    assert "killed failed with exit code -9" in done.stdout
    assert "endless was ended after 6 s" in done.stdout
    rows = rows_of(tmp_path / "found.json")
    for name in ("killed", "unequal", "endless"):
        assert rows[f"{name}: begun"]["value"] == 1
        assert rows[f"{name}: ran to its end"]["met"] is False
    assert rows["missed: slow"]["met"] is False  # a target that is missed is no failure


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--parts", "probe,speed"), "'speed' is no part; choose from probe, equality"),
        (("--folder", "nowhere"), "--folder nowhere is no folder"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything(options, problem):
    done = run("-m", "benchmarks.offload_gpu", "--smoke", *options)
    assert done.returncode == 2
    assert problem in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = run("-m", "benchmarks.offload_gpu")
    assert done.returncode == 1
    assert "no CUDA device here; --smoke runs small sizes" in done.stderr


def test_the_limits_are_below_eight_minutes():
    code = "from benchmarks import offload_gpu as s; print(sum(p.limit for p in s.PARTS.values()))"
    assert float(run("-c", code).stdout) < 480
