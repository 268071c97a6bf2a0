"""A run whose samples are gone, or are those of another run, does not go on."""

from __future__ import annotations

import shutil

import pytest

TINY = ("--limit", 24, "--epochs", 1, "--model", "mlp", "--experiences", 2)


@pytest.fixture
def cut_run(carousel, tmp_path):
    """A run that was killed before its summary."""
    folder = tmp_path / "run"
    assert carousel("train", "--out", folder, "--quiet", *TINY).exit_code == 0
    (folder / "summary.json").unlink()
    return folder


def test_a_run_without_its_storage_is_not_resumed(cut_run, carousel):
    shutil.rmtree(cut_run / "storage")
    result = carousel("train", "--resume", "--out", cut_run)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert str(cut_run / "storage") in line
    assert "put it back, or discard the run with --fresh" in line
    assert not (cut_run / "storage").exists()


def test_a_run_is_not_resumed_on_the_samples_of_another(cut_run, carousel, tmp_path):
    assert carousel("train", "--out", tmp_path / "other", "--quiet", *TINY).exit_code == 0
    shutil.rmtree(cut_run / "storage")
    shutil.copytree(tmp_path / "other" / "storage", cut_run / "storage")
    result = carousel("train", "--resume", "--out", cut_run, "--quiet")
    assert result.exit_code == 2
    assert "is not the one that the checkpoint was made with" in result.stderr
    assert "--fresh" in result.stderr


def test_an_import_of_nothing_leaves_no_storage_behind(carousel, tmp_path):
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "list.txt").write_text("no image")
    result = carousel("import", tmp_path / "photos", tmp_path / "db")
    assert result.exit_code == 2
    assert f"{tmp_path / 'photos'} holds no samples" in result.stderr
    assert not (tmp_path / "db").exists()


def test_a_run_on_a_damaged_storage_says_what_to_do(cut_run, carousel):
    data = cut_run / "storage" / "data.mdb"
    data.write_bytes(data.read_bytes()[:9000])
    result = carousel("train", "--resume", "--out", cut_run)
    assert result.exit_code == 1
    assert "restore it from a copy" in result.stderr
    assert "--fresh" in result.stderr
    assert "Traceback" in (cut_run / "log.txt").read_text()
    again = carousel("train", "--fresh", "--out", cut_run, "--quiet", *TINY)
    assert again.exit_code == 0, again.output


def test_a_compacted_storage_is_still_that_of_its_run(cut_run, carousel):
    assert carousel("compact", cut_run / "storage").exit_code == 0
    result = carousel("train", "--resume", "--out", cut_run, "--quiet")
    assert result.exit_code == 0, result.output
