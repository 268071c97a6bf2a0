"""One environment: transactions, growth under readers, errors in our words, modes, folders."""

import logging
import threading

import lmdb
import pytest

from carousel.errors import (
    BadInputError,
    StorageClosedError,
    StorageCorruptedError,
    StorageError,
    StorageIOError,
    TierFullError,
)
from carousel.storage import creation, disk
from carousel.storage.creation import DATABASES, META, SAMPLES
from carousel.storage.lmdb import environment
from carousel.storage.lmdb.environment import Environment
from carousel.storage.lmdb.errors import MapFullError, translate


@pytest.fixture
def open_env(tmp_path):
    opened = []

    def open_env(name="db", **options):
        options.setdefault("durability", "process")
        opened.append(Environment(tmp_path / name, **options))
        return opened[-1]

    yield open_env
    for env in opened:
        env.close()


def lmdb_error(code):
    error = lmdb.Error("x")
    error.code = code
    return error


def put(env, key, value, **options):
    with env.write(len(value), **options) as txn:
        txn.put(key, value, db=env.databases[SAMPLES])


def get(env, key):
    with env.read() as txn:
        value = txn.get(key, db=env.databases[SAMPLES])
        return None if value is None else bytes(value)


def test_what_is_committed_is_there_again(open_env):
    env = open_env("a/b/c")
    put(env, b"k", b"v" * 5000)
    env.close()
    again = open_env("a/b/c")
    assert get(again, b"k") == b"v" * 5000
    assert again.uuid == env.uuid
    assert set(again.databases) == set(DATABASES)


def test_a_block_that_raises_is_undone(open_env):
    env = open_env()

    def fail():
        with env.write() as txn:
            txn.put(b"k", b"v", db=env.databases[SAMPLES])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert get(env, b"k") is None


def test_the_engine_is_named_and_its_format_is_the_portable_one(open_env):
    env = open_env()
    assert env._env.lib_version()[0] == 0
    assert env._env.flags()["readahead"] is False
    assert env._env.flags()["writemap"] is False


@pytest.mark.parametrize(
    ("durability", "sync", "metasync"),
    [
        ("durable", True, True),
        ("bounded", True, False),
        ("process", False, True),
        ("ephemeral", False, True),
    ],
)
def test_each_mode_opens_with_its_flags(open_env, durability, sync, metasync):
    flags = open_env(durability=durability)._env.flags()
    assert (flags["sync"], flags["metasync"], flags["map_async"]) == (sync, metasync, False)


def test_the_map_grows_while_others_read(open_env):
    env = open_env()
    put(env, b"k", b"v")
    stop, seen, errors = threading.Event(), [], []

    def read():
        while not stop.is_set():
            try:
                seen.append(get(env, b"k"))
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    before = env._env.info()["map_size"]
    for _ in range(5):
        assert env.grow()
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(seen) == {b"v"}
    assert env._env.info()["map_size"] == before * 32


def test_growth_waits_for_open_transactions(open_env):
    env = open_env()
    put(env, b"k", b"v")
    inside, leave, grown = threading.Event(), threading.Event(), threading.Event()

    def read():
        with env.read() as txn:
            inside.set()
            leave.wait(30)
            assert bytes(txn.get(b"k", db=env.databases[SAMPLES])) == b"v"

    reader = threading.Thread(target=read)
    grower = threading.Thread(target=lambda: grown.set() if env.grow() else None)
    reader.start()
    assert inside.wait(30)
    grower.start()
    assert not grown.wait(0.05)
    leave.set()
    assert grown.wait(30)
    reader.join()
    grower.join()


def test_a_full_map_says_so_and_keeps_the_old_data(open_env):
    env = open_env(max_bytes=1 << 19)
    put(env, b"k", b"v" * 1000)
    with pytest.raises(MapFullError):
        put(env, b"big", bytes(1 << 19))
    assert isinstance(MapFullError("x"), TierFullError)
    assert get(env, b"k") == b"v" * 1000
    put(env, b"small", b"fits")
    assert not env.grow()
    assert env.file_bytes <= 1 << 19


def test_the_file_is_never_shorter_than_its_last_page(open_env):
    env = open_env()
    for i in range(50):
        put(env, b"%d" % i, bytes(9000))
        assert env.file_bytes >= (env._env.info()["last_pgno"] + 1) * env.page_bytes


def test_space_taken_ahead_is_given_back_under_a_smaller_budget(open_env):
    env = open_env(max_bytes=8 << 20, preallocate=True)
    assert env.file_bytes == 8 << 20
    put(env, b"k", b"v")
    env.close()
    again = open_env(max_bytes=1 << 20)
    assert again.file_bytes <= 1 << 20
    assert get(again, b"k") == b"v"


def test_a_budget_below_what_is_stored_is_refused(open_env):
    env = open_env()
    put(env, b"k", bytes(1 << 20))
    env.close()
    with pytest.raises(BadInputError, match="compact"):
        open_env(max_bytes=1 << 19)
    assert get(open_env(), b"k") == bytes(1 << 20)


def test_preallocation_needs_a_budget(open_env):
    with pytest.raises(BadInputError):
        open_env(preallocate=True)
    open_env()


def test_reading_beside_the_owner_is_refused_writing(open_env, tmp_path):
    env = open_env()
    put(env, b"k", b"v")
    env.close()
    reader = open_env(readonly=True)
    assert get(reader, b"k") == b"v"
    with pytest.raises(StorageError):
        put(reader, b"k", b"w")
    reader.close()
    with pytest.raises(BadInputError):
        open_env("nothing", readonly=True)
    assert not (tmp_path / "nothing").exists()


def test_use_after_close_is_a_typed_error(open_env):
    env = open_env()
    env.close()
    env.close()
    with pytest.raises(StorageClosedError):
        get(env, b"k")
    with pytest.raises(StorageClosedError):
        put(env, b"k", b"v")


def test_closing_waits_for_a_reader(open_env):
    env = open_env()
    put(env, b"k", b"v")
    inside, leave, values = threading.Event(), threading.Event(), []

    def read():
        with env.read() as txn:
            inside.set()
            leave.wait(30)
            values.append(bytes(txn.get(b"k", db=env.databases[SAMPLES])))

    reader = threading.Thread(target=read)
    reader.start()
    assert inside.wait(30)
    closer = threading.Thread(target=env.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    leave.set()
    reader.join()
    closer.join()
    assert values == [b"v"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lmdb.MapFullError("x"), MapFullError),
        (lmdb.CorruptedError("x"), StorageCorruptedError),
        (lmdb.PageNotFoundError("x"), StorageCorruptedError),
        (lmdb_error(code=28), TierFullError),
        (lmdb_error(code=5), StorageIOError),
        (lmdb.DiskError("x"), StorageIOError),
        (lmdb.Error("x"), StorageIOError),
    ],
)
def test_errors_of_lmdb_become_ours(tmp_path, error, expected):
    assert type(translate(error, tmp_path)) is expected


def test_an_io_error_on_a_full_disk_is_a_full_tier(open_env, monkeypatch):
    env = open_env()
    for module in (environment, disk):
        monkeypatch.setattr(module, "free_bytes", lambda path: 1000)
    assert type(translate(lmdb.Error("Input/output error"), env.path, 5000)) is TierFullError
    assert not env.grow()


def test_a_kill_while_it_is_made_leaves_nothing_behind(tmp_path, open_env, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    monkeypatch.setattr(creation.shutil, "rmtree", lambda *a, **k: None)
    monkeypatch.setattr(creation.json, "dumps", die)
    with pytest.raises(Killed):
        open_env()
    monkeypatch.undo()
    assert not (tmp_path / "db" / "data.mdb").exists()
    (tmp_path / "db" / "index.bin.new").touch()
    env = open_env()
    put(env, b"k", b"v")
    assert not (tmp_path / "db" / ".new").exists()
    assert not (tmp_path / "db" / "index.bin.new").exists()


def test_live_bytes_follow_what_is_stored(open_env):
    env = open_env()

    def live():
        with env.read() as txn:
            return env.live_bytes(txn)

    empty = live()
    for i in range(10):
        put(env, b"%d" % i, bytes(40_000))
    full = live()
    assert full - empty >= 400_000
    with env.write(required=False) as txn:
        for i in range(10):
            txn.delete(b"%d" % i, db=env.databases[SAMPLES])
    assert live() <= empty + env.page_bytes


@pytest.mark.parametrize(
    ("kind", "networked"), [("ext4", False), ("nfs4", True), ("fuse.sshfs", True), ("9p", True)]
)
def test_network_file_systems_are_warned_about(tmp_path, monkeypatch, caplog, kind, networked):
    class Mount:
        def __init__(self, mountpoint, fstype):
            self.mountpoint, self.fstype = mountpoint, fstype

    mounts = [Mount("/", "ext4"), Mount(str(tmp_path), kind)]
    monkeypatch.setattr(disk.psutil, "disk_partitions", lambda all: mounts)
    with caplog.at_level(logging.WARNING, "carousel.storage"):
        Environment(tmp_path / "db", durability="process").close()
    assert ("network file system" in caplog.text) is networked


def test_the_meta_record_names_format_and_engine(open_env):
    env = open_env()
    with env.read() as txn:
        assert b'"lmdb": "0.9"' in bytes(txn.get(b"carousel", db=env.databases[META]))
