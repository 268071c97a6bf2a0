import io
import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from carousel.errors import (
    BadInputError,
    ForeignStorageError,
    StorageClosedError,
    StorageCorruptedError,
    StorageIOError,
    StorageLockedError,
    TierFullError,
)
from carousel.storage.codec import encode_batch
from carousel.storage.plain.async_files import AsyncFiles
from carousel.storage.plain.file_tier import FileTier
from carousel.storage.plain.image_file import from_file, suffix_of, to_file
from carousel.storage.record import ENCODED, FieldSpec, RecordBatch
from carousel.storage.tier import ReadStatus


def images(ids, shape=(8, 9, 3), labels=None, salt=0):
    ids = np.asarray(ids, np.int64)
    rng = np.random.default_rng(salt)
    return RecordBatch(
        ids,
        ids % 3 if labels is None else np.full_like(ids, labels),
        ids * 0,
        (FieldSpec("x", "uint8", shape), FieldSpec("logits", "float32", (2,))),
        {
            "x": rng.integers(0, 256, (len(ids), *shape), np.uint8),
            "logits": rng.standard_normal((len(ids), 2), np.float32),
        },
    )


def jpeg(value):
    file = io.BytesIO()
    Image.fromarray(np.full((5, 5, 3), value, np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [((8, 9, 3), False), ((3, 8, 9), True), ((8, 9), False), ((8, 9, 1), False), ((1, 8, 9), True)],
)
def test_people_see_the_image_and_the_record_comes_back_bit_for_bit(
    tmp_path, shape, channels_first
):
    sent = images(range(3), shape)
    with FileTier(tmp_path / "s") as tier:
        tier.put_many(sent)
        out = {"x": np.zeros((3, *shape), np.uint8), "logits": np.zeros((3, 2), np.float32)}
        assert not tier.get_into(np.arange(3), out, np.arange(3)).any()
    assert np.array_equal(out["x"], sent.fields["x"])
    assert np.array_equal(out["logits"], sent.fields["logits"])
    pixels = sent.fields["x"][2]
    seen = np.moveaxis(pixels, 0, -1) if channels_first else pixels
    shown = np.asarray(Image.open(tmp_path / "s" / "2" / "2.png"))
    assert np.array_equal(shown, seen.reshape(shown.shape))


def test_encoded_images_are_kept_as_they_came_and_can_be_seen(tmp_path):
    ids = np.array([0, 1])
    sent = RecordBatch(
        ids, ids, ids, (FieldSpec("x", ENCODED),), {"x": [jpeg(10), b"something else"]}
    )
    with FileTier(tmp_path / "s") as tier:
        tier.put_many(sent)
        assert [record.fields["x"] for record in tier.get_many(ids)] == sent.fields["x"]
    assert Image.open(tmp_path / "s" / "0" / "0.jpg").size == (5, 5)
    assert (tmp_path / "s" / "1" / "1.rec").exists()


def test_every_flipped_byte_of_a_file_is_found():
    rng = np.random.default_rng(0)
    for record in encode_batch(images(range(3))):
        file = to_file(record)
        assert suffix_of(file) == ".png"
        assert from_file(file) == bytes(record)
        for at in rng.integers(0, len(file), 200).tolist():
            damaged = bytearray(file)
            damaged[at] ^= 1 << int(rng.integers(8))
            with pytest.raises(Exception, match="file"):
                from_file(bytes(damaged))
        for length in (0, 3, 40, len(file) // 2, len(file) - 1):
            with pytest.raises(Exception, match="file"):
                from_file(file[:length])


def test_a_damaged_or_missing_file_is_set_aside_and_not_served(tmp_path):
    with FileTier(tmp_path / "s") as tier:
        tier.put_many(images(range(9)))
        path = tmp_path / "s" / "1" / "4.png"
        content = bytearray(path.read_bytes())
        content[50] ^= 1
        path.write_bytes(content)
        (tmp_path / "s" / "2" / "5.png").unlink()
        out = {"x": np.zeros((9, 8, 9, 3), np.uint8)}
        status = tier.get_into(np.arange(9), out, np.arange(9))
        assert np.flatnonzero(status == ReadStatus.CORRUPT).tolist() == [4, 5]
        assert not path.exists()
        assert tier.quarantined().keys() == {4, 5}
        assert tier.verify().ok
    with FileTier(tmp_path / "s") as tier:
        assert tier.quarantined().keys() == {4, 5}
        assert tier.entries().ids.tolist() == [0, 1, 2, 3, 6, 7, 8]
        tier.delete_many(np.array([4, 5]))
        assert tier.quarantined() == {}


def test_the_journal_survives_a_torn_last_line_and_says_when_it_is_damaged(tmp_path):
    with FileTier(tmp_path / "s") as tier:
        tier.put_many(images(range(4)))
        tier.put_many(images(range(4, 6)))
    journal = tmp_path / "s" / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])
    with FileTier(tmp_path / "s") as tier:
        assert tier.entries().ids.tolist() == [0, 1, 2, 3]
        tier.put_many(images([9]))
    with FileTier(tmp_path / "s") as tier:
        assert tier.entries().ids.tolist() == [0, 1, 2, 3, 9]
    for damaged in (b"", b"nonsense\n" + whole, whole[:30] + b"x" + whole[31:]):
        journal.write_bytes(damaged)
        with pytest.raises(StorageCorruptedError, match="import the folder"):
            FileTier(tmp_path / "s")


def test_the_journal_does_not_grow_without_end(tmp_path):
    journal = tmp_path / "s" / "journal.jsonl"
    with FileTier(tmp_path / "s", budget=20) as tier:
        ids = np.arange(100)
        layout, pixels = (FieldSpec("x", "uint8", (4,)),), np.zeros((100, 4), np.uint8)
        tier.put_many(RecordBatch(ids, ids * 0, ids * 0, layout, {"x": pixels}))
        line = -journal.stat().st_size
        tier.reserve_ids(1)
        line += journal.stat().st_size
        for _ in range(3000):
            tier.reserve_ids(1)
        assert journal.stat().st_size < 2000 * line
        kept = tier.entries().ids
        assert len(list((tmp_path / "s" / "0").iterdir())) == len(kept) == 20
    with FileTier(tmp_path / "s", budget=20) as tier:
        assert np.array_equal(tier.entries().ids, kept)
        assert tier.high_water == 3101


def test_foreign_places_are_refused(tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(BadInputError, match="through a file"):
        FileTier(tmp_path / "file" / "below")
    with pytest.raises(BadInputError, match="through a file"):
        FileTier(tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "holiday.png").write_bytes(b"")
    with pytest.raises(ForeignStorageError, match="no Carousel folder"):
        FileTier(tmp_path / "other")
    with pytest.raises(BadInputError, match="durability is 'bounded'"):
        FileTier(tmp_path / "new", durability="bounded")
    assert (tmp_path / "other" / "holiday.png").exists()


def test_a_folder_has_one_owner(tmp_path):
    with FileTier(tmp_path / "s"):
        with pytest.raises(StorageLockedError, match="this process"):
            FileTier(tmp_path / "s")
        code = (
            "import sys; from carousel.storage.plain.file_tier import FileTier\n"
            "from carousel.errors import StorageLockedError\n"
            "try: FileTier(sys.argv[1])\n"
            "except StorageLockedError as error: print(error.owner_pid)"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "s")]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == str(os.getpid())
    FileTier(tmp_path / "s").close()


def _use_after_fork(tier, answers):
    for call in (lambda: tier.get_many(np.arange(2)), lambda: tier.put_many(images([5]))):
        try:
            call()
        except StorageClosedError as error:
            answers.put(str(error))
    tier.close()


def test_a_forked_child_is_told_and_leaves_the_parent_alone(tmp_path):
    context = multiprocessing.get_context("fork")
    with FileTier(tmp_path / "s") as tier:
        tier.put_many(images(range(2)))
        answers = context.Queue()
        child = context.Process(target=_use_after_fork, args=(tier, answers))
        child.start()
        assert "before a fork" in answers.get(timeout=30)
        assert "before a fork" in answers.get(timeout=30)
        child.join()
        tier.put_many(images(range(2, 4)))
        assert tier.verify().checked == 4
        assert '"clean": false' in (tmp_path / "s" / "carousel.json").read_text()


def _die_between_files_and_journal(path):
    tier = FileTier(path)
    tier.put_many(images(range(4)))
    tier._medium._journal.append = lambda *_: os._exit(9)
    tier.put_many(images(range(4, 8), salt=1))


def test_a_kill_before_the_journal_leaves_only_what_was_acknowledged(tmp_path):
    process = multiprocessing.get_context("fork").Process(
        target=_die_between_files_and_journal, args=(tmp_path / "s",)
    )
    process.start()
    process.join()
    assert process.exitcode == 9
    assert len(list((tmp_path / "s").glob("*/*.png"))) == 8
    with FileTier(tmp_path / "s") as tier:
        assert tier.entries().ids.tolist() == [0, 1, 2, 3]
        assert tier.verify().ok
        assert len(list((tmp_path / "s").glob("*/*.png"))) == 4
        tier.put_many(images(range(4, 8), salt=2))
        assert tier.verify().ok


@pytest.mark.parametrize(("error", "raised"), [(28, TierFullError), (5, StorageIOError)])
def test_a_failed_write_changes_nothing(tmp_path, monkeypatch, error, raised):
    with FileTier(tmp_path / "s") as tier:
        tier.put_many(images(range(3)))

        def fail(*_):
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(tier._medium._journal, "_write", fail)
        with pytest.raises(raised):
            tier.put_many(images(range(3, 6)))
        monkeypatch.undo()
        assert tier.entries().ids.tolist() == [0, 1, 2]
        assert tier.verify().ok
        tier.put_many(images(range(3, 6)))
        assert len(tier.entries()) == 6


def test_durable_syncs_files_folders_and_journal(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or real(fd)
    )
    with FileTier(tmp_path / "s", durability="durable") as tier:
        assert tier.durability == "durable"
        tier.put_many(images(range(2)))
    names = {os.path.basename(path) for path in synced}
    assert {"0.png.tmp", "1.png.tmp", "journal.jsonl", "0", "1"} <= names


def test_no_more_files_are_open_at_a_time_than_allowed(tmp_path, monkeypatch):
    files = AsyncFiles(limit=3)
    busy, most, lock = 0, 0, threading.Lock()
    gated = AsyncFiles._read

    async def counted(self, path):
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        try:
            return await gated(self, path)
        finally:
            with lock:
                busy -= 1

    monkeypatch.setattr(AsyncFiles, "_read", counted)
    paths = [tmp_path / str(i) for i in range(40)]
    files.write(paths, [b"%d" % i for i in range(40)], sync=False)
    assert files.read(paths) == [b"%d" % i for i in range(40)]
    assert 1 < most <= 3
    files.close()
    files.close()


def test_closing_leaves_no_threads(tmp_path):
    before = set(threading.enumerate())
    with FileTier(tmp_path / "s") as tier:
        tier.put_many(images(range(20)))
    assert set(threading.enumerate()) <= before
    assert not (tmp_path / "s" / "owner.lock").exists()
