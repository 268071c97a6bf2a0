from __future__ import annotations

import json

import pytest

from carousel.errors import BadInputError
from carousel.runs.study.folder import StudyFolder, default_study_path
from carousel.runs.study.grid import make_grid
from carousel.runs.study.settings import dump_study, plan_study

SUMMARY = {
    "final_accuracy": 0.5,
    "forgetting": 0.0,
    "seconds": 1.0,
    "accuracy_matrix": [[0.5]],
    "test_samples": [4],
}


def made(path, *assignments):
    study = plan_study(strategies="er", seeds="1", assignments=assignments, bounds=False)
    folder = StudyFolder(path)
    folder.create(dump_study(study))
    return study, folder, make_grid(study)


def test_a_run_of_an_earlier_study_is_found_by_its_settings(tmp_path):
    _, folder, (_, swap) = made(tmp_path)
    folder.run(swap).create(swap.config)
    _, folder, cells = made(tmp_path, "swap_ratio=0.5,1.0")
    half, whole = (cell for cell in cells if cell.swap)
    assert folder.run(half).started
    assert folder.run(half).path.name == swap.name != half.name
    assert folder.run(whole).path.name == whole.name
    assert not folder.run(whole).started


def test_results_tell_done_failed_and_missing(tmp_path):
    study, folder, (plain, swap) = made(tmp_path)
    folder.run(plain).create(plain.config)
    folder.run(plain).write_summary(SUMMARY)
    results = folder.report(study, (plain, swap), {swap.name: "boom"})
    assert [run.state for run in results.runs] == ["done", "failed"]
    assert results.runs[1].log == str(folder.log(swap))
    assert [run.state for run in folder.report_again().runs] == ["done", "failed"]
    assert [run.state for run in folder.report(study, (plain, swap), {}).runs] == [
        "done",
        "missing",
    ]
    folder.run(swap).create(swap.config)
    folder.run(swap).write_summary(SUMMARY)
    results = folder.report(study, (plain, swap), {swap.name: "an older error"})
    assert [run.error for run in results.runs] == ["", ""]
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {"metric": "er: gain", "value": 0.0, "target": None, "met": None} in rows


def test_a_folder_of_something_else_is_refused(tmp_path):
    StudyFolder(tmp_path).check_free()
    StudyFolder(tmp_path / "absent").check_free()
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="other files"):
        StudyFolder(tmp_path).check_free()
    with pytest.raises(BadInputError, match="is a file"):
        StudyFolder(tmp_path / "file").check_free()
    with pytest.raises(BadInputError, match="holds no study"):
        StudyFolder(tmp_path).report_again()
    made(tmp_path / "study")
    StudyFolder(tmp_path / "study").check_free()


def test_the_default_place_names_the_benchmark():
    assert default_study_path("split-digits").name.endswith("-compare-split-digits")
