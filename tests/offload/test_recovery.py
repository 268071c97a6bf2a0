"""After a kill, or an error, the newest commit is whole, and training goes on bit for bit."""

import os
import subprocess
import sys

import pytest
import torch

from carousel.errors import (
    BadInputError,
    CorruptRecordError,
    ForeignStorageError,
    SchemaMismatchError,
    StorageCorruptedError,
    StorageError,
    StorageIOError,
    StorageLockedError,
    TierFullError,
)
from carousel.offload import TieredAdamW
from carousel.storage import LMDBTier

SMALL = {"ram_budget": "300KiB", "chunk_numel": 4096, "durability": "process"}


def resume(twins, folder, seed=99, **options):
    params = twins.params(seed)
    return params, TieredAdamW.resume(twins.groups(params), folder, **options)


@pytest.mark.parametrize("durability", ["process", "bounded", "durable"])
def test_resuming_goes_on_bit_for_bit(twins, tmp_path, durability):
    theirs, reference = twins.torch(amsgrad=True)
    mine, ours = twins.ours(storage=tmp_path, amsgrad=True, **SMALL | {"durability": durability})
    for params, optimizer in ((mine, ours), (theirs, reference)):
        optimizer.param_groups[1]["lr"] = 0.02
        twins.train(params, optimizer, 7)
    ours.close()
    mine, ours = resume(twins, tmp_path, ram_budget="900KiB", durability=durability)
    assert twins.same(mine, theirs)
    assert ours.param_groups[1]["lr"] == 0.02
    assert ours.stats().committed_step is None
    twins.same_state(reference.state_dict(), ours.state_dict())
    for params, optimizer in ((mine, ours), (theirs, reference)):
        twins.train(params, optimizer, 4, first=7)
    assert twins.same(mine, theirs)
    twins.same_state(reference.state_dict(), ours.state_dict())
    ours.close()
    assert twins.same(resume(twins, tmp_path)[0], theirs)


def test_the_payload_comes_back(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path, payload=lambda: {"step": 5}, **SMALL)
    twins.train(params, ours, 1)
    ours.close()
    params, ours = resume(twins, tmp_path)
    assert ours.resumed_payload == {"step": 5}
    ours.commit({"rng": torch.get_rng_state()})
    ours.close()
    _, ours = resume(twins, tmp_path)
    assert torch.equal(ours.resumed_payload["rng"], torch.get_rng_state())
    ours.close()


def test_explicit_commits_only(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path, commit_every=0, **SMALL)
    twins.train(params, ours, 3)
    ours.commit()
    kept = [p.detach().clone() for p in params]
    twins.train(params, ours, 3, first=3)
    ours.close()
    again, ours = resume(twins, tmp_path)
    assert twins.same(again, kept)
    assert ours.stats().steps == 3
    ours.close()


def test_states_that_were_cleared_leave_their_parameters_recoverable(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path, **SMALL)
    twins.train(params, ours, 3, gaps=False)
    ours.state.clear()
    params[0].grad = torch.ones(1)
    for param in params[1:]:
        param.grad = None
    ours.step()
    ours.close()
    again, ours = resume(twins, tmp_path)
    assert twins.same(again, params)
    assert list(ours.state) == [again[0]]
    ours.close()


def test_a_parameter_that_is_replaced_is_committed_with_the_others(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path, **SMALL)
    twins.train(params, ours, 3, gaps=False)
    params[5] = ours.param_groups[2]["params"][1] = torch.nn.Parameter(torch.ones(200, 131))
    twins.train(params, ours, 1, first=3)
    ours.close()
    assert len(list(tmp_path.glob("states-*.bin"))) == 1
    twins.shapes = (*twins.shapes[:5], (200, 131))
    again, ours = resume(twins, tmp_path)
    assert twins.same(again, params)
    ours.close()


def trained(twins, folder, steps=3):
    params, ours = twins.ours(storage=folder, **SMALL)
    twins.train(params, ours, steps, gaps=False)
    ours.close()
    return params


def only_file(folder):
    (file,) = folder.glob("states-*.bin")
    return file


@pytest.mark.parametrize("at", [4096, 4096 + 20000, 300_000])
def test_a_record_that_was_torn_is_refused(twins, tmp_path, at):
    trained(twins, tmp_path)
    with only_file(tmp_path).open("r+b") as file:
        for place in range(2):
            file.seek(at + place * 53248)
            block = file.read(512)
            file.seek(-len(block), os.SEEK_CUR)
            file.write(bytes(byte ^ 0x5A for byte in block))
    with pytest.raises(CorruptRecordError):
        resume(twins, tmp_path)


def test_a_file_that_is_missing_short_or_foreign_is_refused(twins, tmp_path):
    trained(twins, tmp_path)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    for content, error in (
        (b"x" * len(whole), ForeignStorageError),
        (whole[:5000], StorageCorruptedError),
        (None, StorageCorruptedError),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(error):
            resume(twins, tmp_path)
    path.write_bytes(whole)
    resume(twins, tmp_path)[1].close()


def test_other_parameters_are_refused(twins, tmp_path):
    trained(twins, tmp_path)
    for shapes, words in (((*twins.shapes[:-1], (129, 132)), "elements"), (twins.shapes[:-1], "5")):
        twins.shapes = shapes
        with pytest.raises(SchemaMismatchError, match=words):
            resume(twins, tmp_path)


def test_other_groups_are_refused(twins, tmp_path):
    trained(twins, tmp_path)
    params = twins.params()
    with pytest.raises(SchemaMismatchError, match="groups"):
        TieredAdamW.resume(params, tmp_path)


def test_a_folder_that_holds_something_is_not_written_over(twins, tmp_path):
    trained(twins, tmp_path)
    with pytest.raises(BadInputError, match=r"TieredAdamW\.resume"):
        twins.ours(storage=tmp_path, **SMALL)
    _, ours = twins.ours(storage=tmp_path, fresh=True, **SMALL)
    assert ours.stats().steps == 0
    ours.close()
    with pytest.raises(BadInputError, match="no commit"):
        resume(twins, tmp_path)


def test_samples_are_not_discarded(twins, tmp_path):
    with LMDBTier(tmp_path) as tier:
        tier.reserve_ids(10)
    for fresh in (False, True):
        with pytest.raises(BadInputError, match="samples"):
            twins.ours(storage=tmp_path, fresh=fresh, **SMALL)
    with LMDBTier(tmp_path) as tier:
        assert tier.high_water == 10


def test_nothing_to_resume(twins, tmp_path):
    with pytest.raises(BadInputError, match="no commit"):
        resume(twins, tmp_path / "new")


def test_two_optimizers_on_one_path(twins, tmp_path):
    _, ours = twins.ours(storage=tmp_path / "a", **SMALL)
    with pytest.raises(BadInputError, match="open in this process"):
        twins.ours(storage=tmp_path / "a", **SMALL)
    ours.close()
    hold = "import sys; from carousel.storage import LMDBTier; t = LMDBTier(sys.argv[1]);"
    with subprocess.Popen(
        [sys.executable, "-c", hold + "print(1, flush=True); input()", str(tmp_path / "b")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        other.stdout.readline()
        with pytest.raises(StorageLockedError, match=str(other.pid)):
            twins.ours(storage=tmp_path / "b", **SMALL)
        with pytest.raises(StorageLockedError, match=str(other.pid)):
            twins.ours(storage=tmp_path / "b", fresh=True, **SMALL)
        other.stdin.write(b"\n")


@pytest.mark.parametrize(
    ("number", "error"), [(28, TierFullError), (5, StorageIOError)], ids=["full", "broken"]
)
def test_a_disk_that_fails_in_a_step(twins, tmp_path, monkeypatch, number, error):
    params, ours = twins.ours(storage=tmp_path, **SMALL)
    twins.train(params, ours, 3, gaps=False)
    ours.flush()
    kept = [p.detach().clone() for p in params]
    real, calls = os.pwritev, []

    def fail(*args):
        calls.append(args)
        if len(calls) > 2:
            raise OSError(number, os.strerror(number))
        return real(*args)

    monkeypatch.setattr(os, "pwritev", fail)
    with pytest.raises(error):
        twins.train(params, ours, 3, first=3)
    with pytest.raises(error):
        ours.step()
    monkeypatch.undo()
    with pytest.raises(error):
        ours.close()
    again, ours = resume(twins, tmp_path)
    assert ours.stats().steps == 3
    assert twins.same(again, kept)
    ours.close()


def test_a_commit_that_fails_is_the_last_one(twins, tmp_path, monkeypatch):
    params, ours = twins.ours(storage=tmp_path, **SMALL)
    twins.train(params, ours, 2, gaps=False)
    ours.flush()
    kept = [p.detach().clone() for p in params]

    def fail(*_):
        raise StorageIOError("broken")

    monkeypatch.setattr(ours._book.shelf.home._log, "publish", fail)
    with pytest.raises(StorageError, match="broken"):
        twins.train(params, ours, 3, first=2)
    with pytest.raises(StorageError):
        ours.close()
    assert twins.same(resume(twins, tmp_path)[0], kept)


def test_a_read_that_fails_in_a_step(twins, tmp_path, monkeypatch):
    params, ours = twins.ours(storage=tmp_path, **SMALL)
    twins.train(params, ours, 2, gaps=False)

    def fail(*_):
        raise OSError(5, "broken")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(StorageIOError):
        twins.train(params, ours, 3, first=2)
    monkeypatch.undo()
    with pytest.raises(StorageIOError):
        ours.close()
    resume(twins, tmp_path)[1].close()


def test_a_file_that_gets_short_while_it_is_used(twins, tmp_path):
    params, ours = twins.ours(storage=tmp_path, **SMALL)
    twins.train(params, ours, 2, gaps=False)
    ours.flush()
    os.truncate(only_file(tmp_path), 8192)
    with pytest.raises(StorageCorruptedError, match="ends where a chunk is to be read"):
        twins.train(params, ours, 2, first=2, gaps=False)
    with pytest.raises(StorageCorruptedError):
        ours.close()
    with pytest.raises(StorageCorruptedError, match="bytes of"):
        resume(twins, tmp_path)


def test_an_interrupt_within_a_step_ends_the_optimizer(twins, tmp_path, monkeypatch):
    params, ours = twins.ours(storage=tmp_path, **SMALL)
    twins.train(params, ours, 2, gaps=False)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("carousel.offload.update.fused_update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ours.step()
    monkeypatch.undo()
    with pytest.raises(StorageError, match="broken off"):
        ours.step()
    ours.close()
    _, ours = resume(twins, tmp_path)
    assert ours.stats().steps == 2
    ours.close()
