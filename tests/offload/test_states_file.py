"""Records come back from their places; a file that is not ours, or short, or full, is an error."""

import errno
import os
import resource

import numpy as np
import pytest

from carousel.errors import (
    BadInputError,
    ForeignStorageError,
    StorageCorruptedError,
    StorageIOError,
    TierFullError,
)
from carousel.offload.ring import anonymous
from carousel.offload.states_file import StatesFile

PLAN = "ab" * 16
SIZES = [8192, 4096, 12288]


def content(chunk, place):
    record = anonymous(SIZES[chunk])
    record[:] = np.random.default_rng(10 * chunk + place).integers(0, 256, SIZES[chunk], np.uint8)
    return record


@pytest.fixture
def make(tmp_path):
    made = []

    def make(**options):
        made.append(StatesFile(tmp_path / "states-1.bin", PLAN, SIZES, **options))
        return made[-1]

    yield make
    for file in made:
        file.close()


@pytest.mark.parametrize("io", ["auto", "buffered"])
@pytest.mark.parametrize("places", [1, 2])
def test_records_come_back_from_their_places(make, io, places):
    file = make(io=io, places=places, create=True)
    for chunk in range(3):
        for place in range(places):
            file.write(chunk, place, content(chunk, place))
    file.sync()
    file.close()
    file = make(io=io, places=places)
    for chunk in range(3):
        for place in range(places):
            record = anonymous(SIZES[chunk])
            file.read(chunk, place, record, 4096 if SIZES[chunk] > 4096 else 0)
            begin = 4096 if SIZES[chunk] > 4096 else 0
            assert np.array_equal(record[begin:], content(chunk, place)[begin:])
            assert not record[:begin].any()


def test_all_of_the_disk_space_is_taken_at_once(make, tmp_path):
    file = make(create=True)
    assert file.nbytes == 4096 + 2 * sum(SIZES) == os.stat(tmp_path / "states-1.bin").st_size
    assert os.stat(tmp_path / "states-1.bin").st_blocks * 512 >= file.nbytes


def test_bytes_are_counted(make):
    file = make(create=True)
    file.write(2, 0, content(2, 0))
    file.read(2, 0, anonymous(SIZES[2]), 8192)
    assert (file.written_bytes, file.read_bytes) == (12288, 4096)


def test_short_transfers_and_interrupts_go_on(make, monkeypatch):
    file = make(io="buffered", create=True)
    real, calls = os.pwritev, []

    def short(descriptor, views, at):
        calls.append(at)
        if len(calls) == 2:
            raise InterruptedError
        return real(descriptor, [views[0][:5000]], at)

    monkeypatch.setattr(os, "pwritev", short)
    file.write(2, 1, content(2, 1))
    monkeypatch.undo()
    record = anonymous(SIZES[2])
    file.read(2, 1, record)
    assert np.array_equal(record, content(2, 1))
    assert len(calls) > 3


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, TierFullError),
        (errno.EDQUOT, TierFullError),
        (errno.EIO, StorageIOError),
    ],
)
def test_what_the_system_reports_has_a_type(make, monkeypatch, code, error):
    file = make(create=True)

    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", fail)
    with pytest.raises(error, match=r"states-1\.bin"):
        file.write(0, 0, content(0, 0))


def test_a_full_disk_shows_before_anything_is_there(make, monkeypatch, tmp_path):
    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(TierFullError):
        make(create=True)
    assert not list(tmp_path.iterdir())


def test_a_file_larger_than_the_process_may_write_is_refused(make, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(TierFullError, match="ulimit -f"):
            make(create=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_short_file_is_refused(make, tmp_path):
    make(create=True)
    os.truncate(tmp_path / "states-1.bin", 4096 + sum(SIZES))
    with pytest.raises(StorageCorruptedError, match="has 28672 bytes of 53248"):
        make()


def test_a_file_that_shrinks_while_it_is_open_is_an_error(make, tmp_path):
    file = make(create=True)
    os.truncate(tmp_path / "states-1.bin", 4096)
    with pytest.raises(StorageCorruptedError, match="ends where"):
        file.read(0, 0, anonymous(SIZES[0]))


def test_a_foreign_file_and_one_of_another_plan_are_refused(make, tmp_path):
    path = tmp_path / "states-1.bin"
    path.write_bytes(b"something else" * 10_000)
    with pytest.raises(ForeignStorageError, match="no file of optimizer states"):
        make()
    StatesFile(path, "cd" * 16, SIZES, create=True).close()
    with pytest.raises(ForeignStorageError, match="other parameters"):
        make()


def test_a_missing_file_is_refused(make):
    with pytest.raises(StorageCorruptedError, match="missing"):
        make()


def test_direct_io_that_is_not_there(make, monkeypatch):
    def fail(*_):
        raise OSError(errno.EINVAL, "not here")

    make(create=True)
    monkeypatch.setattr(os, "preadv", fail)
    assert not make().direct
    with pytest.raises(BadInputError, match="io='auto'"):
        make(io="direct")
