from __future__ import annotations

import json

import numpy as np
import pytest

from carousel.runs import diagnosis
from carousel.storage import FieldSpec, LMDBTier, RecordBatch, parse_budget


def test_a_plan_counts_what_really_fits(carousel):
    words = ["--shape", "3x32x32", "--samples", 50_000, "--memory-size", "1MiB"]
    found = json.loads(carousel("plan", *words, "--memory-size", 500, "--json").stdout)
    assert found["sample"]["ram_bytes"] == 3072
    assert found["sample"]["disk_bytes"] >= 4096
    small, counted = found["memories"]
    assert small["ram_bytes"] <= 2**20
    assert 140 < small["slots"] < 341
    assert counted["slots"] == 500
    assert found["swaps"] == {"a_step": 16, "batch": 32, "ratio": 0.5}
    assert found["storage"]["stream_bytes"] == 50_000 * found["sample"]["disk_bytes"]


def test_a_plan_says_what_a_budget_keeps(carousel):
    words = ["--shape", "3x32x32", "--samples", 50_000, "--storage-budget"]
    found = json.loads(carousel("plan", *words, "1000", "--json").stdout)
    assert found["storage"]["budget_samples"] == 1000
    assert found["storage"]["share_of_stream"] == pytest.approx(0.02)
    found = json.loads(carousel("plan", *words, "100MiB", "--json").stdout)
    assert 15_000 < found["storage"]["budget_samples"] < 25_600
    assert any("keeps" in line for line in found["advice"])


@pytest.mark.parametrize("size", ["64KiB", "40"])
@pytest.mark.parametrize("ratio", ["0.5", "0"])
def test_a_plan_is_what_a_run_gets(carousel, tmp_path, size, ratio):
    words = ["--memory-size", size, "--swap-ratio", ratio, "--json"]
    found = json.loads(carousel("plan", *words).stdout)
    run = ["--out", tmp_path / "r", "--model", "mlp", "--epochs", 1, "--batch-size", 256]
    summary = json.loads(carousel("train", *words, *run).stdout)
    (memory,) = found["memories"]
    assert memory["slots"] == summary["memory_slots"]
    assert memory["spares"] == summary["memory_spares"]
    assert found["samples"] == summary["storage_records"]
    assert summary["storage_bytes"] <= found["storage"]["file_bytes"]
    assert found["storage"]["file_bytes"] < 2 * summary["storage_bytes"]


@pytest.mark.parametrize(
    ("shape", "samples"), [((1, 28, 28), 6000), ((1, 8, 8), 9000), ((3, 32, 32), 1200)]
)
def test_a_byte_budget_keeps_at_least_what_is_planned(carousel, tmp_path, shape, samples):
    words = ["--shape", "x".join(map(str, shape)), "--samples", samples]
    found = json.loads(carousel("plan", *words, "--storage-budget", "1MiB", "--json").stdout)
    planned = found["storage"]["budget_samples"]
    with LMDBTier(tmp_path / "db", budget=parse_budget("1MiB"), sync=True) as tier:
        tier.reserve_ids(samples)
        for start in range(0, samples, 200):
            ids = np.arange(start, start + 200)
            values = {"x": np.zeros((200, *shape), np.uint8)}
            layout = (FieldSpec("x", "uint8", shape),)
            tier.put_many(RecordBatch(ids, ids % 10, ids * 0, layout, values))
        kept = tier.stats().records
    assert 0.6 * kept < planned <= kept


def test_a_plan_says_when_a_budget_suffices(carousel):
    for budget in ("2000", "1MiB"):
        result = carousel("plan", "--storage-budget", budget)
        assert "budget suffices" in result.stdout


def test_a_plan_warns_of_a_memory_below_the_classes(carousel):
    words = ["--shape", "1x28x28", "--classes", 1000, "--memory-size", 500]
    assert "below 2 samples a class" in carousel("plan", *words).stdout


def test_a_plan_for_a_benchmark_reads_well(carousel):
    text = carousel("plan", "--benchmark", "figlet-94").stdout
    for words in ("33,084", "uint8 1x28x28", "swaps a step", "memory size"):
        assert words in text, words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--benchmark", "figlet"], "give --shape"),
        (["--shape", "3xx"], "as in 3x32x32"),
        (["--shape", "3x224"], "as in 3x32x32"),
        (["--dtype", "float32"], "without --shape"),
        (["--storage-budget", "1KiB"], "give at least 512 KiB"),
        (["--shape", "0x3x3"], "as in 3x32x32"),
        (["--shape", "3x3x3", "--dtype", "floot"], "numpy dtype"),
        (["--memory-size", "much"], "memory_size"),
        (["--memory-size", "0"], "memory_size"),
        (["--swap-ratio", "2"], "swap-ratio"),
    ],
)
def test_a_plan_refuses_nonsense_in_one_line(carousel, words, said):
    result = carousel("plan", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_doctor_finds_this_machine_fit_and_leaves_no_trace(carousel, tmp_path):
    result = carousel("doctor", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["ready"]
    found = {finding["name"]: finding for finding in report["findings"]}
    for name in ("python", "packages", "lmdb", "threads", "gpu", "memory", "disk"):
        assert found[name]["value"]
    assert found["writing"]["value"] == "samples saved durably and read back"
    assert found["locks"]["value"] == "a second writer is kept out"
    assert list(tmp_path.iterdir()) == []
    assert "ready" in carousel("doctor", tmp_path).stdout


def test_the_doctor_looks_at_a_storage(carousel, store):
    def state() -> str:
        report = json.loads(carousel("doctor", store, "--json").stdout)
        return next(f["value"] for f in report["findings"] if f["name"] == "storage")

    assert state() == "closed cleanly, durability bounded"
    with LMDBTier(store):
        assert "in use by process" in state()


def test_the_doctor_says_what_will_not_work(carousel, tmp_path, monkeypatch):
    monkeypatch.setattr(diagnosis, "package_versions", lambda: {"torch": "2.14.1", "xxhash": None})
    result = carousel("doctor", tmp_path / "nowhere", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    advice = [finding["advice"] for finding in report["findings"] if finding["state"] == "bad"]
    assert advice == ["pip install xxhash", "give a folder that exists"]


def test_the_doctor_reports_a_disk_that_cannot_be_written(carousel, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("Read-only file system")

    monkeypatch.setattr(diagnosis, "LMDBTier", refuse)
    result = carousel("doctor", tmp_path)
    assert result.exit_code == 1
    assert "Read-only file system" in result.stdout
