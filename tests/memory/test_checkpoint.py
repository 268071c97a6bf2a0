import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.errors import CheckpointError
from carousel.memory.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    save_numbered,
)

STATE = {
    "step": 7,
    "name": "run",
    "nothing": None,
    "rates": [0.1, 0.2],
    "weights": torch.arange(6.0).reshape(2, 3),
    "bits": torch.tensor([True, False]),
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "nested": {1: (2, "3")},
}


def test_a_state_comes_back_as_it_was(tmp_path):
    path = tmp_path / "state.pt"
    save_checkpoint(path, STATE)
    back = load_checkpoint(path)
    assert {key: value for key, value in back.items() if not torch.is_tensor(value)} == {
        key: value for key, value in STATE.items() if not torch.is_tensor(value)
    }
    for key in ("weights", "bits", "half"):
        assert torch.equal(back[key], STATE[key])
        assert back[key].dtype == STATE[key].dtype
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.pt"]


@pytest.fixture(scope="module")
def checkpoint_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "state.pt"
    save_checkpoint(path, STATE)
    return path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_changed_byte_and_no_truncation_is_accepted(tmp_path_factory, checkpoint_bytes, data):
    content = bytearray(checkpoint_bytes)
    if data.draw(st.booleans(), label="truncate"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "state.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    save_checkpoint(path, {"step": 1})

    def fail(handle):
        raise OSError("disk gone")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_checkpoint(path, {"step": 2})
    monkeypatch.undo()
    assert load_checkpoint(path) == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.pt"]


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    path = tmp_path / "state.pt"
    save_checkpoint(path, {"x": Evil()})
    with pytest.raises(CheckpointError, match="something else"):
        load_checkpoint(path)
    assert not (tmp_path / "owned").exists()


def test_a_missing_file_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path / "absent.pt")


def test_the_newest_whole_checkpoint_is_found(tmp_path):
    folder = tmp_path / "checkpoints"
    assert latest_checkpoint(folder) is None
    for step in (5, 40, 300):
        save_numbered(folder, step, {"step": step})
    assert len(list(folder.iterdir())) == 2
    path, state = latest_checkpoint(folder)
    assert state["step"] == 300

    path.write_bytes(path.read_bytes()[:-9])
    assert latest_checkpoint(folder)[1]["step"] == 40


def test_all_torn_says_so(tmp_path):
    path = save_numbered(tmp_path, 1, {"step": 1})
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        latest_checkpoint(tmp_path)
