"""inspect, verify, compact and forget on a real storage."""

from __future__ import annotations

import json

import numpy as np
import pytest

from carousel.storage import LMDBTier


def damage(store, needle: bytes) -> None:
    """Flip a bit of a record's payload, below every cache."""
    file = store / "data.mdb"
    content = bytearray(file.read_bytes())
    place = content.find(needle)
    assert place > 0
    content[place + 3] ^= 4
    file.write_bytes(content)


def payload(store, id_: int) -> bytes:
    with LMDBTier(store, readonly=True) as tier:
        (record,) = tier.get_many(np.array([id_]))
        return record.fields["x"].tobytes()


def test_inspect_tells_what_is_stored(carousel, store):
    result = carousel("inspect", store, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["records"] == 60
    assert found["classes"] == {"0": 20, "1": 20, "2": 20}
    assert found["tasks"] == {"0": 30, "1": 30}
    assert found["schema"] == [{"name": "x", "dtype": "uint8", "shape": [1, 40, 40]}]
    assert (found["durability"], found["closed_cleanly"]) == ("bounded", True)
    assert found["quarantine"] == {}
    assert found["file_bytes"] >= found["live_bytes"] >= 60 * 1600
    assert found["space_amplification"] >= 1


def test_inspect_reads_well(carousel, store):
    text = carousel("inspect", store).stdout
    for words in ("60", "x uint8 (1, 40, 40)", "bounded", "Samples by class", "nothing damaged"):
        assert words in text, words


def test_inspect_works_beside_a_writer(carousel, store):
    with LMDBTier(store):
        assert carousel("inspect", store).exit_code == 0


def test_verify_passes_an_intact_storage(carousel, store):
    result = carousel("verify", store)
    assert result.exit_code == 0
    assert "60 samples checked: all intact" in result.stdout


def test_verify_finds_one_flipped_bit(carousel, store):
    damage(store, payload(store, 7))
    result = carousel("verify", store, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["ok"]
    assert list(found["corrupt"]) == ["7"]
    assert "1 damaged" in carousel("verify", store).stdout or carousel("inspect", store).stdout
    assert list(json.loads(carousel("inspect", store, "--json").stdout)["quarantine"]) == ["7"]


def test_forgotten_bytes_are_gone_after_compact(carousel, store):
    bytes_before = payload(store, 6)
    assert bytes_before in (store / "data.mdb").read_bytes()
    result = carousel("forget", store, "--id", 6, "--class", 1, "--yes", "--json")
    assert json.loads(result.stdout) == {"forgotten": 21, "left": 39}
    result = carousel("compact", store, "--json")
    assert result.exit_code == 0
    sizes = json.loads(result.stdout)
    assert sizes["after_bytes"] < sizes["before_bytes"]
    assert bytes_before not in (store / "data.mdb").read_bytes()
    assert carousel("verify", store).exit_code == 0


def test_forget_asks_first(carousel, store):
    refused = carousel("forget", store, "--all", answer="n\n")
    assert refused.exit_code == 1
    assert "stopped: nothing was changed" in refused.stderr
    assert "Forget 60 samples for good?" in refused.output
    assert json.loads(carousel("inspect", store, "--json").stdout)["records"] == 60
    assert carousel("forget", store, "--all", answer="y\n").exit_code == 0
    assert json.loads(carousel("inspect", store, "--json").stdout)["records"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--class", 77], "no sample is of class 77: classes are 0 to 2"),
        (["--id", -1], "no sample is of id -1: ids are 0 to 59"),
        (["--task", 5], "no sample is of task 5: tasks are 0 to 1"),
    ],
)
def test_forget_says_what_there_is_when_nothing_matches(carousel, store, words, said):
    result = carousel("forget", store, *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_verify_tells_a_damaged_file_from_damaged_samples(carousel, store, monkeypatch):
    from carousel.storage import VerifyReport

    report = VerifyReport(checked=60, problems=["page 7 is used twice"])
    monkeypatch.setattr("carousel.storage.maintenance.verify_store", lambda *_: report)
    result = carousel("verify", store)
    assert result.exit_code == 1
    for words in ("page 7 is used twice", "file around them is damaged", "carousel export"):
        assert words in result.stdout, words
    assert "0 damaged" not in result.stdout


def test_forget_by_task(carousel, store):
    assert carousel("forget", store, "--task", 1, "-y").exit_code == 0
    assert json.loads(carousel("inspect", store, "--json").stdout)["tasks"] == {"0": 30}


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["forget", "STORE"], "give --id, --class, --task or --all"),
        (["forget", "STORE", "--all", "--json"], "give --yes as well"),
        (["inspect", "NOWHERE"], "give the folder of a storage"),
        (["verify", "NOWHERE"], "give the folder of a storage"),
        (["compact", "NOWHERE"], "give the folder of a storage"),
        (["forget", "NOWHERE", "--all"], "give the folder of a storage"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(carousel, store, tmp_path, words, fix):
    paths = {"STORE": store, "NOWHERE": tmp_path / "nowhere"}
    result = carousel(*(paths.get(word, word) for word in words))
    assert result.exit_code == 2
    assert fix in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


def test_a_storage_that_is_being_written_is_left_alone(carousel, store):
    with LMDBTier(store):
        assert carousel("compact", store).exit_code == 2


def test_an_export_comes_back_bit_for_bit(carousel, store, tmp_path):
    result = carousel("export", store, tmp_path / "files", "--json")
    assert json.loads(result.stdout)["exported"] == 60
    result = carousel("import", tmp_path / "files", tmp_path / "again", "--json")
    assert json.loads(result.stdout)["imported"] == 60
    for id_ in (0, 31, 59):
        assert payload(tmp_path / "again", id_) == payload(store, id_)


def test_an_import_can_add_a_field(carousel, store, tmp_path):
    carousel("export", store, tmp_path / "files")
    words = ["--schema", "logits:float32:10=0.5"]
    assert carousel("import", tmp_path / "files", tmp_path / "again", *words).exit_code == 0
    schema = json.loads(carousel("inspect", tmp_path / "again", "--json").stdout)["schema"]
    assert schema[1] == {"name": "logits", "dtype": "float32", "shape": [10]}


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["import", "NOWHERE", "NEW"], "give a folder of samples"),
        (["import", "EMPTY", "NEW"], "give a folder of samples"),
        (["import", "STORE", "NEW", "--schema", "logits"], "write NAME:DTYPE:SHAPE=FILL"),
        (["import", "STORE", "NEW", "--schema", "x:floot:10"], "give a numpy dtype"),
        (["export", "NOWHERE", "NEW"], "give the folder of a storage"),
    ],
)
def test_a_refused_transfer_makes_nothing(carousel, store, tmp_path, words, fix):
    (tmp_path / "empty").mkdir()
    names = {"NEW": "new", "NOWHERE": "nowhere", "EMPTY": "empty", "STORE": store.name}
    result = carousel(*(tmp_path / names[word] if word in names else word for word in words))
    assert result.exit_code == 2, result.output
    assert fix in result.stderr
    assert not (tmp_path / "new").exists()


def test_an_export_into_a_folder_with_other_files_is_refused(carousel, store, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").touch()
    assert carousel("export", store, tmp_path / "thesis").exit_code == 2
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]
