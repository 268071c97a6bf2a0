"""Every value that cannot be used: exit code 2, one line with the fix, nothing on the disk."""

from __future__ import annotations

import os

import numpy as np
import pytest

from carousel.storage import FieldSpec, LMDBTier, RecordBatch


@pytest.fixture(autouse=True)
def _workplace(tmp_path, monkeypatch):
    """An empty working folder beside one with things that can be in the way."""
    things = tmp_path / "things"
    (things / "folder").mkdir(parents=True)
    (things / "folder" / "thesis.tex").touch()
    (things / "file").write_text("not a folder")
    (things / "unknown_key.yaml").write_text("memroy_size: 5\n")
    (things / "broken.yaml").write_text("lr: [1\n")
    (things / "list.yaml").write_text("- 1\n")
    other_schema(things / "other-schema")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def other_schema(path) -> None:
    """A storage of samples that are no digits."""
    from carousel.memory.schema import META_KEY, Schema

    layout = (FieldSpec("x", "float32", (7,)),)
    ids = np.arange(4)
    with LMDBTier(path, sync=True) as tier:
        tier.reserve_ids(4)
        tier.put_meta({META_KEY: Schema(layout).to_json().encode()})
        tier.put_many(RecordBatch(ids, ids, ids, layout, {"x": np.zeros((4, 7), np.float32)}))


def snapshot(folder) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
        if path.name != "lock.mdb"  # LMDB's table of readers
    }


CASES = [
    (["--strategy", "err"], "did you mean er?"),
    (["--gate", "balancd"], "did you mean balanced?"),
    (["--gate", "all"], "all"),
    (["--benchmark", "split-digit"], "did you mean split-digits?"),
    (["--benchmark", "npz:nowhere.npz"], "nowhere.npz"),
    (["--admission", "ringg"], "did you mean ring?"),
    (["--model", "cnnn"], "did you mean cnn?"),
    (["--model", "nowhere:make"], "nowhere"),
    (["--swap-ratio", "1.5"], "swap_ratio is '1.5': it should be less than or equal to 1"),
    (["--swap-ratio", "-0.1"], "greater than or equal to 0"),
    (["--swap-ratio", "nan"], "swap_ratio"),
    (["--memory-size", "0"], "memory_size"),
    (["--memory-size", "-5"], "memory_size"),
    (["--memory-size", "much"], "memory_size"),
    (["--memory-size", "1TiB"], "give a smaller memory_size"),
    (["--memory-size", "999999999999"], "give a smaller memory_size"),
    (["--memory-size", "1B"], "memory_size"),
    (["--storage-budget", "10KiB"], "give at least"),
    (["--storage-budget", "lots"], "storage_budget"),
    (["--storage-budget", "0"], "storage_budget"),
    (["--storage", "../things/file"], "leads through the file"),
    (["--storage", "../things/file/below"], "leads through the file"),
    (["--storage", "../things/folder"], "did not make"),
    (["--storage", "../things/folder", "--fresh"], "did not make"),
    (["--storage", "../things/other-schema"], "--resume, --fresh or another --storage"),
    (["--storage", "../things/other-schema", "--resume"], "x float32 (7,)"),
    (["--out", "../things/file"], "leads through the file"),
    (["--out", "../things/folder"], "other files"),
    (["--out", "../things/folder", "--fresh"], "other files"),
    (["--resume", "--fresh"], "go on with a run, or discard it"),
    (["--device", "cuda:7"], "use auto or cpu"),
    (["--device", "gpu"], "use auto, cpu, cuda"),
    (["--optimizer", "adam"], "did you mean adamw?"),
    (["--scenario", "clas"], "did you mean class?"),
    (["--durability", "bound"], "did you mean bounded?"),
    (["--logger", "tensorbord"], "tensorboard"),
    (["--epochs", "0"], "epochs is '0'"),
    (["--epochs", "-1"], "epochs is '-1'"),
    (["--epochs", "1.5"], "epochs is '1.5'"),
    (["--experiences", "11"], "experiences"),
    (["--batch-size", "0"], "batch_size is '0'"),
    (["--batch-size-mem", "-3"], "batch_size_mem is '-3'"),
    (["--lr", "0"], "lr is '0'"),
    (["--lr", "-1"], "lr is '-1'"),
    (["--lr", "inf"], "lr"),
    (["--seed", "-3"], "seed is '-3'"),
    (["--checkpoint-every", "0"], "checkpoint_every is '0'"),
    (["--replay", "mixed", "--update", "batch"], 'use replay="concat"'),
    (["--set", "strategy.los=ce"], "did you mean loss?"),
    (["--set", "strategy.loss=mse"], "loss"),
    (["--set", "memroy_size=5"], "did you mean memory_size?"),
    (["--set", "lr"], "write --set key=value"),
    (["--set", "strategy.replay=mixed", "--replay", "concat"], "give one of the two"),
    (["--strategy", "naive", "--replay", "mixed"], "replay"),
    (["--config", "nowhere.yaml"], "there is no file nowhere.yaml here"),
    (["--config", "../things/unknown_key.yaml"], "did you mean memory_size?"),
    (["--config", "../things/broken.yaml"], "not valid YAML"),
    (["--config", "../things/list.yaml"], "holds no keys"),
    (["--config", "../things/folder"], "cannot be read"),
]


@pytest.mark.parametrize(("words", "said"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_a_refused_run_says_why_and_leaves_no_trace(carousel, tmp_path, words, said):
    before = snapshot(tmp_path)
    result = carousel("train", "--quiet", *words)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert snapshot(tmp_path) == before


def test_a_gpu_that_is_not_there_is_refused(carousel, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    result = carousel("train", "--device", "cuda", "--quiet")
    assert result.exit_code == 2
    assert "this machine has none: use auto or cpu" in result.stderr
    assert os.listdir() == []


def test_a_logger_that_is_not_installed_is_refused(carousel, monkeypatch):
    monkeypatch.setattr("carousel.runs.loggers.find_spec", lambda name: None)
    result = carousel("train", "--logger", "wandb", "--quiet")
    assert result.exit_code == 2
    assert "pip install wandb" in result.stderr
    assert os.listdir() == []


def test_a_folder_that_may_not_be_written_is_refused(carousel, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for flag in ("--out", "--storage"):
        result = carousel("train", flag, tmp_path / "new", "--quiet")
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr


def test_a_locked_storage_is_refused_with_its_owner(carousel, tmp_path):
    """Resuming a run that is still going on in another process."""
    import subprocess
    import sys

    hold = (
        "import sys; from carousel.storage import LMDBTier; "
        "tier = LMDBTier(sys.argv[1]); print('held', flush=True); input()"
    )
    path = tmp_path / "db"
    LMDBTier(path).close()
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        other.stdout.readline()
        for way in ("--fresh", "--resume"):
            result = carousel("train", "--storage", path, way, "--out", tmp_path / "r", "--quiet")
            assert result.exit_code == 2, result.output
            assert str(other.pid) in result.stderr
            assert not (tmp_path / "r").exists()
        other.stdin.close()
