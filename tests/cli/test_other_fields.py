"""A storage whose samples lack what a method stores is refused; the commands it names mend it."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
import torch

from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.storage import LMDBTier, MemoryTier
from carousel.storage.transfer import add_field, export_store, import_store
from carousel.strategies import ER, CarMPlugin, DERPlusPlus

TINY = ("--limit", 12, "--epochs", 1, "--model", "mlp", "--batch-size", 12, "--lr", 0.01)
TINY += ("--experiences", 2, "--sync", "--quiet")


@pytest.fixture
def refused(carousel, tmp_path, monkeypatch):
    """Where DER++ was refused, and the commands that it was told."""
    monkeypatch.chdir(tmp_path)
    made = carousel("train", "--storage", "db", "--out", "er", *TINY)
    assert made.exit_code == 0, made.output
    before = {path: path.read_bytes() for path in tmp_path.rglob("data.mdb")}
    words = ("train", "--strategy", "der++", *TINY, "--resume", "--out", "der")
    result = carousel(*words, "--storage", "db")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "holds samples with x uint8 (1, 8, 8), and der++ on this benchmark" in result.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("data.mdb")} == before
    assert not (tmp_path / "der").exists()
    told = [shlex.split(line)[1:] for line in re.findall(r"`(carousel [^`]+)`", result.stderr)]
    return words, {line[0]: line for line in told}


def test_an_upgraded_copy_is_taken(carousel, refused):
    words, told = refused
    for name in ("export", "import"):
        result = carousel(*told[name])
        assert result.exit_code == 0, result.output
    result = carousel(*words, "--storage", "NEW")
    assert result.exit_code == 0, result.output
    found = json.loads(carousel("inspect", "NEW", "--json").stdout)
    assert [field["name"] for field in found["schema"]] == ["x", "logits", "width"]
    assert carousel("verify", "NEW").exit_code == 0


def test_an_emptied_storage_is_taken(carousel, refused):
    words, told = refused
    assert carousel(*told["forget"], "--yes").exit_code == 0
    result = carousel(*words, "--storage", "db")
    assert result.exit_code == 0, result.output
    assert carousel("verify", "db").exit_code == 0


def test_samples_of_another_shape_cannot_be_upgraded(carousel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((24, 1, 6, 6), np.uint8), np.arange(24) % 4
    np.savez("own.npz", x=x, y=y)
    words = ("train", "--storage", "db", *TINY)
    assert carousel(*words, "--benchmark", "npz:own.npz", "--out", "own").exit_code == 0
    result = carousel(*words, "--strategy", "der++", "--resume", "--out", "der")
    assert result.exit_code == 2
    assert "upgrade" not in result.stderr
    assert "carousel forget" in result.stderr


@pytest.mark.parametrize("rule", ["first", "latest", "refresh"])
def test_samples_without_logits_get_them_when_they_are_met_again(tmp_path, rule):
    stream = load_stream("split-digits", limit=12)

    def learn(kind, tier, **options):
        model = make_model("mlp", stream.input_shape, stream.n_classes, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        with CarMPlugin(10, tier, seed=0, sync=True) as memory:
            learner = kind(model=model, optimizer=optimizer, memory=memory, **options)
            for experience in list(to_benchmark(stream).train_stream)[:2]:
                learner.train(experience)
                assert torch.isfinite(learner.loss)

    def widths(tier):
        records = tier.get_many(tier.entries().ids)
        return [int(record.fields["width"]) for record in records]

    with LMDBTier(tmp_path / "old") as old:
        learn(ER, old, train_epochs=2)
        export_store(old, tmp_path / "files")
    new = MemoryTier()
    fields = [add_field("logits", "float32", (10,), 0), add_field("width", "int32", (), 0)]
    import_store(tmp_path / "files", new, add=fields)
    assert widths(new) == [0] * 48
    learn(DERPlusPlus, new, logits=rule)
    assert widths(new) == [10] * 48
