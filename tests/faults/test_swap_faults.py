"""The swap engine under broken, slow and full storage: training goes on, nothing is uncounted."""

import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from carousel.errors import (
    CheckpointError,
    SchemaMismatchError,
    StorageIOError,
    TierFullError,
    WorkerError,
)
from carousel.memory import Carousel
from carousel.memory.breaker import Breaker
from carousel.memory.reader import decode_image
from carousel.memory.slab import Slab
from carousel.memory.write_back import WriteBack
from carousel.storage import FileTier, MemoryTier, ReadStatus
from carousel.storage.eviction import EvictionPlan
from carousel.storage.record import FieldSpec

both_modes = pytest.mark.parametrize("sync", [True, False])


@pytest.fixture
def make_memory(coded, broken_tier):
    made = []

    def make(tier, slots=20, stored=200, **options):
        memory = Carousel(slots, tier, **{"seed": 1, "swap_ratio": 1, **options})
        made.append(memory)
        ids = coded.save(memory, stored)
        memory.end_experience()
        coded.admit(memory, ids)
        return memory

    yield make
    for memory in made:
        memory.close()


def swap_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("carousel")]


def test_a_read_that_hangs_does_not_hold_up_training(make_memory, broken_tier, coded):
    memory = make_memory(broken_tier)
    broken_tier.open.clear()
    history = coded.train(memory, 200)  # would never end if sample or step waited
    assert broken_tier.reading.is_set()
    assert all(ids == history[0] for ids in history)
    assert memory.stats().swaps.done == 0
    assert memory.stats().swaps.dropped_full > 0

    broken_tier.open.set()
    memory.end_experience()
    swaps = memory.stats().swaps
    assert swaps.done > 0
    assert swaps.in_flight == 0


@both_modes
def test_a_damaged_record_is_never_handed_out_and_another_takes_its_place(
    tmp_path, coded, make_memory, sync
):
    with FileTier(tmp_path / "files") as tier:
        memory = make_memory(tier, slots=5, stored=100, sync=sync)
        resident = set(memory.sample(5).ids.tolist())
        victims = [i for i in range(100) if i not in resident][::4]
        for sample in victims:
            flip_a_byte(tmp_path / "files", sample)
        seen = set()
        for _ in range(60):
            (ids,) = coded.train(memory, 1, rows=5)  # checks every byte that it is given
            memory.end_experience()
            seen |= set(ids)
        swaps = memory.stats().swaps
        memory.close()
        assert not seen & set(victims)
        assert len(seen) > 50
        assert tier.quarantined()
        assert set(tier.quarantined()) <= set(victims)
        assert swaps.done > 0.95 * swaps.requested, "others of the class were drawn instead"


def flip_a_byte(folder, sample):
    """Changes one byte of the payload of a sample that is stored as a file."""
    (path,) = folder.glob(f"*/{sample}.*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@both_modes
def test_a_class_of_damaged_records_counts_as_corrupt(make_memory, broken_tier, coded, sync):
    memory = make_memory(broken_tier, sync=sync)
    resident = set(memory.sample(20).ids.tolist())
    class_two = [i for i in range(200) if i % coded.classes == 2 and i not in resident]
    broken_tier.damage(class_two)
    history = coded.train(memory, 40)
    memory.end_experience()
    assert not {sample for ids in history for sample in ids} & set(class_two)
    swaps = memory.stats().swaps
    assert swaps.corrupt > 0
    assert swaps.done > 0
    assert swaps.in_flight == 0


@both_modes
def test_a_record_that_vanishes_is_drawn_again(make_memory, broken_tier, coded, sync):
    memory = make_memory(broken_tier, sync=sync)
    resident = set(memory.sample(20).ids.tolist())
    gone = [i for i in range(200) if i not in resident and i % 2]
    broken_tier.damage(gone, ReadStatus.MISSING)
    coded.train(memory, 30)
    memory.end_experience()
    swaps = memory.stats().swaps
    assert swaps.corrupt == 0
    assert swaps.done > 0
    assert swaps.in_flight == 0


class Stumbling(MemoryTier):
    """Every other read fails."""

    calls = 0

    def get_into(self, ids, out, rows):
        self.calls += 1
        if self.calls % 2:
            raise OSError(5, "Input/output error")
        return super().get_into(ids, out, rows)


@both_modes
def test_an_io_error_is_tried_again(make_memory, coded, sync):
    memory = make_memory(Stumbling(), sync=sync)
    coded.train(memory, 12)
    memory.end_experience()
    swaps = memory.stats().swaps
    assert swaps.done > 0
    assert swaps.io_error == 0
    assert not memory.stats().ram_only


@both_modes
def test_a_dead_disk_means_ram_only_and_is_probed_until_it_is_back(
    make_memory, broken_tier, coded, sync, monkeypatch
):
    monkeypatch.setattr("carousel.memory.reader._BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    memory = make_memory(broken_tier, sync=sync)
    broken_tier.error = StorageIOError("the disk is gone")
    for _ in range(30):
        coded.train(memory, 1)
        memory.end_experience()
    stats = memory.stats()
    assert stats.ram_only
    assert stats.swaps.done == 0
    assert stats.swaps.io_error == stats.swaps.requested == 30 * 16
    assert broken_tier.read_calls < 30, "the broken disk is left alone"

    broken_tier.error = None
    for _ in range(300):
        coded.train(memory, 1)
        memory.end_experience()
    assert not memory.stats().ram_only
    assert memory.stats().swaps.done > 0
    memory.flush()  # an I/O error is an outcome, not a failure of the worker


def test_the_breaker_probes_ever_more_rarely():
    breaker = Breaker()
    tries = []
    for attempt in range(2000):
        if breaker.allows():
            tries.append(attempt)
            breaker.failed()
    gaps = np.diff(tries).tolist()
    assert gaps[:7] == [1, 1, 9, 17, 33, 65, 129]
    assert set(gaps[7:]) == {257}
    breaker.succeeded()
    assert breaker.allows()


@both_modes
def test_a_failing_worker_does_not_kill_training(make_memory, broken_tier, coded, sync):
    memory = make_memory(broken_tier, sync=sync)
    broken_tier.error = RuntimeError("a bug")
    coded.train(memory, 2)
    memory.end_experience()
    assert memory.stats().worker_failures > 0
    broken_tier.error = None
    coded.train(memory, 2)
    memory.end_experience()
    swaps = memory.stats().swaps
    assert swaps.cancelled > 0
    assert swaps.done > 0, "the worker went on"
    with pytest.raises(WorkerError, match="RuntimeError: a bug") as caught:
        memory.flush()
    assert isinstance(caught.value.__cause__, RuntimeError)
    memory.flush()  # told once
    assert memory.stats().swaps.in_flight == 0


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_the_worker_outlives_what_would_end_a_thread(make_memory, broken_tier, coded, error):
    memory = make_memory(broken_tier)
    broken_tier.error = error
    coded.train(memory, 1)
    with pytest.raises(WorkerError):
        memory.flush(30)
    broken_tier.error = None
    coded.train(memory, 20)
    memory.flush(30)
    assert memory.stats().swaps.done > 0
    assert memory.stats().swaps.in_flight == 0


def test_after_ctrl_c_in_a_swap_training_can_go_on(make_memory, broken_tier, coded):
    memory = make_memory(broken_tier, sync=True)
    spares = memory._core.slab.free_rows
    for _ in range(20):
        broken_tier.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            coded.train(memory, 1)
    broken_tier.error = None
    coded.train(memory, 10)
    memory.flush()
    swaps = memory.stats().swaps
    assert swaps.done == 160
    assert swaps.requested == 20 * 16 + 160
    assert swaps.in_flight == 0
    assert memory._core.slab.free_rows == spares


def test_a_gate_that_fails_in_sync_mode_leaves_nothing_in_flight(make_memory, broken_tier, coded):
    memory = make_memory(broken_tier, sync=True, gate="loss", swap_ratio=0.5)
    for _ in range(3):
        with pytest.raises(IndexError):
            memory.observe(memory.sample(8), torch.zeros(8, 1))  # labels go beyond one class
        memory.step()
    assert (memory.stats().swaps.cancelled, memory.stats().swaps.in_flight) == (12, 0)
    coded.train(memory, 5)


def test_a_worker_that_keeps_failing_gives_up(make_memory, broken_tier, coded):
    memory = make_memory(broken_tier)
    broken_tier.error = RuntimeError("a bug")
    for _ in range(10):
        coded.train(memory, 1)
        memory.end_experience()
    assert memory.stats().worker_failures == 4
    assert broken_tier.read_calls == 4
    swaps = memory.stats().swaps
    assert swaps.cancelled == swaps.requested
    with pytest.raises(WorkerError):
        memory.close()
    assert not swap_threads()


def test_close_says_when_the_worker_is_stuck(make_memory, broken_tier, coded):
    memory = make_memory(broken_tier)
    broken_tier.open.clear()
    coded.train(memory, 1)
    broken_tier.reading.wait()
    with pytest.raises(WorkerError, match="blocked"):
        memory._core.engine.close(timeout=0.05)
    assert memory.stats().swaps.in_flight == 0
    broken_tier.open.set()
    (thread,) = swap_threads()
    thread.join(10)
    assert not thread.is_alive()


# -- nothing is lost while there is room -------------------------------------------------------


class EvictOnDemand:
    """An eviction rule that lets go of what it is told to, with the next samples that come."""

    def __init__(self):
        self.leaving = np.empty(0, np.int64)

    def plan(self, index, labels, lengths, limits):
        leaving, self.leaving = self.leaving, self.leaving[:0]
        return EvictionPlan(np.ones(len(labels), bool), leaving[index.contains(leaving)])

    def forget(self, labels):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class EvictingTier(MemoryTier):
    def __init__(self):
        self.rule = EvictOnDemand()
        super().__init__(eviction=self.rule)

    def evict(self, coded, ids):
        self.rule.leaving = np.array(ids, np.int64)
        coded.fill_tier(self, 1)
        assert not self.contains(ids).any()


@both_modes
def test_a_resident_that_storage_evicted_is_saved_before_it_leaves(make_memory, coded, sync):
    tier = EvictingTier()
    memory = make_memory(tier, sync=sync)
    for _ in range(10):
        tier.evict(coded, memory.sample(10).ids)
        coded.train(memory, 4)
        memory.end_experience()
    memory.flush()
    held = set(tier.entries().ids.tolist()) | set(memory.sample(20).ids.tolist())
    assert held == set(range(210)), "every sample is in storage or in a slot"
    stats = memory.stats()
    assert stats.written_back > 0
    assert stats.lost == 0
    for record in tier.get_many(np.array(sorted(tier.entries().ids))):
        assert torch.from_numpy(record.fields["x"]).equal(coded.fields([record.id])["x"][0])
        assert record.task == coded.tasks(record.id)


def test_a_row_that_changes_while_it_is_copied_is_not_saved(coded):
    tier = MemoryTier()
    slab = Slab(coded.schema, 4, 2)
    coded.fill_slab(slab, np.arange(4))
    whole_copy = slab.copy_rows

    def copy_while_training_goes_on(slots):
        fields = whole_copy(slots)
        changed = np.array([2])
        slab.write(changed, coded.fields([9]), np.array([9]), np.array([4]), np.array([0]))
        return fields

    slab.copy_rows = copy_while_training_goes_on
    WriteBack(slab, tier).save(np.array([1, 2]), slab.generations[[1, 2]].copy())
    assert tier.entries().ids.tolist() == [1]


def test_admission_saves_what_it_overwrites(make_memory, coded):
    tier = EvictingTier()
    memory = make_memory(tier, admission="ring")
    first = set(memory.sample(20).ids.tolist())
    tier.evict(coded, sorted(first))
    coded.admit(memory, coded.save(memory, 100))
    memory.flush()
    left = first - set(memory.sample(20).ids.tolist())
    assert left
    assert left <= set(tier.entries().ids.tolist())


def test_losses_to_a_tiny_storage_are_counted(make_memory, coded):
    tier = MemoryTier(budget=30)
    memory = make_memory(tier, slots=20, stored=200, sync=True)
    everything = set(tier.entries().ids.tolist()) | set(memory.sample(20).ids.tolist())
    coded.train(memory, 100)
    memory.flush()
    held = set(tier.entries().ids.tolist()) | set(memory.sample(20).ids.tolist())
    assert len(tier.entries()) <= 30
    stats = memory.stats()
    assert stats.written_back > 0
    assert len(everything - held) <= stats.lost + stats.storage.evicted
    assert stats.swaps.in_flight == 0


class Full(EvictingTier):
    """Takes no more."""

    full = False

    def put_many(self, batch):
        if self.full:
            raise TierFullError("the disk is full")
        super().put_many(batch)


@both_modes
def test_a_full_storage_stops_neither_saving_nor_swapping(make_memory, coded, sync):
    tier = Full()
    memory = make_memory(tier, sync=sync)
    unstored = memory.sample(20).ids
    tier.evict(coded, unstored)
    tier.full = True
    coded.save(memory, 10)
    coded.train(memory, 20)
    memory.end_experience()
    stats = memory.stats()
    assert stats.storage_full
    assert stats.swaps.done > 0
    assert stats.lost == len(set(unstored) - set(memory.sample(20).ids)) > 0


class Late(EvictingTier):
    """Tells of a failed save at the next call, as a tier with a queue does."""

    error = None

    def put_many(self, batch):
        super().put_many(batch)
        self.tell()

    def flush(self, timeout=None):
        self.tell()
        super().flush(timeout)

    def tell(self):
        error, self.error = self.error, None
        if error is not None:
            raise error


@both_modes
def test_what_a_write_back_is_told_of_other_saves_is_passed_on(make_memory, coded, sync):
    tier = Late()
    memory = make_memory(tier, sync=sync)
    for error in (StorageIOError("saves were lost"), TierFullError("no room")):
        tier.evict(coded, memory.sample(20).ids)
        tier.error = error
        coded.train(memory, 1)
        if isinstance(error, StorageIOError):
            with pytest.raises(StorageIOError, match="saves were lost"):
                memory.end_experience()
        else:
            memory.end_experience()
        assert memory.stats().storage_full == isinstance(error, TierFullError)


# -- encoded images ----------------------------------------------------------------------------


def png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


@both_modes
def test_encoded_images_are_decoded_on_their_way_in(tmp_path, sync):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (40, 9, 7, 3), dtype=np.uint8)
    labels = np.arange(40) % 2
    with Carousel(6, MemoryTier(), seed=0, sync=sync, swap_ratio=1) as memory:
        ids = memory.save(None, labels, x=[png(image) for image in images])
        memory.end_experience()
        chw = torch.from_numpy(images).permute(0, 3, 1, 2)
        memory.admit(ids, labels, fetch=lambda rows: {"x": chw[rows]})
        for _ in range(30):
            replay = memory.sample(6)
            assert replay.x.shape == (6, 3, 9, 7)
            assert replay.x.equal(chw[replay.ids])
            memory.observe(replay, torch.zeros(6, 2))
            memory.step()
            memory.end_experience()
        assert memory.stats().swaps.done > 50


def test_the_pixels_of_a_huge_image_are_never_made(monkeypatch):
    spec = FieldSpec("x", "uint8", (1, 8, 8))
    huge = png(np.zeros((3000, 3000), np.uint8))
    monkeypatch.setattr(Image.Image, "convert", None)
    with pytest.raises(SchemaMismatchError, match=r"\(3000, 3000\)"):
        decode_image(huge, spec)


def test_images_of_another_size_and_broken_ones_are_left_out():
    rng = np.random.default_rng(0)
    good = [png(rng.integers(0, 255, (8, 8), dtype=np.uint8)) for _ in range(10)]
    bad = [png(rng.integers(0, 255, (4, 4), dtype=np.uint8)), b"not an image", good[0][:40]]
    bad.append(good[0].replace(b"IDAT", b"\x9eDAT"))  # Pillow answers with a SyntaxError
    with Carousel(2, MemoryTier(), seed=0, sync=True, swap_ratio=1) as memory:
        ids = memory.save(None, [0] * 14, x=good + bad)
        memory.admit(
            ids[:2], [0, 0], fetch=lambda rows: {"x": torch.zeros(len(rows), 1, 8, 8).byte()}
        )
        seen = set()
        for _ in range(60):
            replay = memory.sample(2)
            seen |= set(replay.ids.tolist())
            memory.observe(replay, torch.zeros(2, 1))
            memory.step()
        assert seen == set(range(10))
        assert memory.stats().swaps.done > 100
        assert memory.stats().worker_failures == 0


# -- restoring from damaged storage ------------------------------------------------------------


def test_residents_that_storage_lost_are_replaced_by_others_of_their_class(
    make_memory, broken_tier, coded
):
    memory = make_memory(broken_tier, sync=True)
    coded.train(memory, 5)
    state = memory.state_dict()
    histogram = np.bincount(memory.sample(20).labels.numpy()).tolist()
    lost = memory.sample(20).ids[:6].copy()
    broken_tier.damage(lost[:3])
    broken_tier.delete_many(lost[3:])

    memory.load_state_dict(state)
    ids = memory.sample(20).ids
    assert not set(ids.tolist()) & set(lost.tolist())
    assert np.bincount(coded.labels(ids)).tolist() == histogram
    assert memory.stats().restore_losses == 6
    coded.train(memory, 20)


def test_a_resident_that_nothing_can_replace_leaves_its_slot_empty(make_memory, broken_tier, coded):
    memory = make_memory(broken_tier, slots=10, stored=20, sync=True)
    state = memory.state_dict()
    zeros = [i for i in range(20) if i % coded.classes == 0]
    broken_tier.delete_many(np.array(zeros))
    memory.load_state_dict(state)
    assert memory.filled == 8
    assert memory.stats().restore_losses == 2
    coded.train(memory, 5)


def test_a_dead_disk_refuses_the_restore(make_memory, broken_tier, monkeypatch):
    monkeypatch.setattr("carousel.memory.reader._BACKOFF_SECONDS", ())
    memory = make_memory(broken_tier, sync=True)
    state = memory.state_dict()
    broken_tier.error = OSError(5, "Input/output error")
    with pytest.raises(CheckpointError, match="cannot be read"):
        memory.load_state_dict(state)
