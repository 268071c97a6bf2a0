import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carousel.storage.index import Index


def add(index, ids, labels=0, lengths=100, offsets=None):
    ids = np.asarray(ids, np.int64)
    full = np.full_like
    index.add(ids, full(ids, labels), full(ids, 0), full(ids, lengths), offsets)


ids_list = st.lists(st.integers(0, 60), unique=True, max_size=12)


class IndexAgainstDict(RuleBasedStateMachine):
    """Any sequence of operations leaves the index equal to a dict; snapshots never change."""

    def __init__(self):
        super().__init__()
        self.index = Index()
        self.model = {}
        self.hidden = set()
        self.snapshots = []

    @rule(ids=ids_list, label=st.integers(0, 3), big=st.booleans())
    def add(self, ids, label, big):
        fresh = np.array([i for i in ids if i not in self.model], np.int64)
        task = 2**33 if big else 1
        lengths = fresh + (2**40 if big else 10)
        self.index.add(
            fresh, np.full_like(fresh, label), np.full_like(fresh, task), lengths, fresh * 4096
        )
        for i in fresh.tolist():
            self.model[i] = (label, task, i + (2**40 if big else 10), i * 4096)

    @rule(ids=st.lists(st.integers(0, 60), max_size=12))
    def remove(self, ids):
        mask = self.index.remove(np.array(ids, np.int64))
        assert mask.tolist() == [i in self.model for i in ids]
        for i in ids:
            self.model.pop(i, None)
            self.hidden.discard(i)

    @rule(first=st.integers(0, 60))
    def hide(self, first):
        self.index.hide_from(first)
        self.hidden |= {i for i in self.model if i >= first}

    @rule(ids=ids_list)
    def show(self, ids):
        self.index.show(np.array(ids, np.int64))
        self.hidden -= set(ids)

    @rule(label=st.integers(0, 3))
    def look(self, label):
        ids = self.index.ids_of(label)
        self.snapshots = [*self.snapshots[-20:], (ids, ids.tolist())]

    @rule(ids=ids_list, offset=st.integers(-1, 10))
    def move(self, ids, offset):
        place = -1 if offset < 0 else offset * 4096
        self.index.set_offsets(np.array(ids, np.int64), np.full(len(ids), place))
        for i in set(ids) & self.model.keys():
            self.model[i] = (*self.model[i][:3], place)

    @invariant()
    def same_as_model(self):
        everything = np.arange(61)
        assert len(self.index) == len(self.model)
        assert self.index.total_length == sum(m[2] for m in self.model.values())
        assert self.index.contains(everything).tolist() == [i in self.model for i in range(61)]
        found = np.stack(self.index.lookup(everything), axis=1).tolist()
        assert found == [list(self.model.get(i, (-1,) * 4)) for i in range(61)]

    @invariant()
    def classes_as_model(self):
        for label in range(4):
            stored = sorted(i for i, m in self.model.items() if m[0] == label)
            visible = [i for i in stored if i not in self.hidden]
            assert self.index.ids_of(label).tolist() == visible
            assert self.index.stored_ids(label).tolist() == stored
            assert self.index.class_counts().get(label, 0) == len(visible)
            assert self.index.stored_counts().get(label, 0) == len(stored)

    @invariant()
    def snapshots_unchanged(self):
        assert all(ids.tolist() == before for ids, before in self.snapshots)

    def teardown(self):
        entries = self.index.entries()
        assert entries.ids.tolist() == sorted(self.model)
        assert entries.labels.tolist() == [self.model[i][0] for i in sorted(self.model)]
        assert entries.tasks.tolist() == [self.model[i][1] for i in sorted(self.model)]
        assert entries.lengths.tolist() == [self.model[i][2] for i in sorted(self.model)]


TestIndexAgainstDict = IndexAgainstDict.TestCase
TestIndexAgainstDict.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_about_thirty_bytes_a_record():
    index = Index()
    n = 200_000
    for start in range(0, n, 1000):
        ids = np.arange(start, start + 1000)
        index.add(ids, ids % 100, ids * 0 + 3, ids * 0 + 4096, ids * 4096)
    assert index.nbytes / n < 34


def test_memory_follows_what_is_stored_under_an_endless_stream():
    index = Index()
    peak = 0
    for start in range(0, 400_000, 1000):
        ids = np.arange(start, start + 1000)
        index.add(ids, ids % 10, ids * 0, ids * 0 + 10)
        if start >= 20_000:
            index.remove(ids - 20_000)
        peak = max(peak, index.nbytes)
    assert len(index) == 20_000
    assert peak < 20_000 * 34 * 1.6


def test_late_ids_in_any_order_end_in_the_same_place_as_ordered_ones():
    rng = np.random.default_rng(0)
    ids = rng.permutation(20_000)
    mixed, ordered = Index(), Index()
    for part in np.array_split(ids, 40):
        mixed.add(part, part % 7, part * 0, part * 0 + 1)
    every = np.arange(20_000)
    ordered.add(every, every % 7, every * 0, every * 0 + 1)
    for label in range(7):
        assert np.array_equal(mixed.ids_of(label), ordered.ids_of(label))


def test_an_id_may_come_back_after_it_was_removed():
    index = Index()
    add(index, [1, 2, 3])
    index.remove(np.array([2]))
    add(index, [2], labels=5, lengths=7)
    assert index.lookup(np.array([2])).labels.tolist() == [5]
    assert index.total_length == 207
    index.remove(np.array([2]))
    assert not index.contains(np.array([2]))[0]


def test_what_is_stored_cannot_be_added():
    index = Index()
    add(index, [1, 2])
    with pytest.raises(ValueError, match="stored already"):
        add(index, [2, 3])
    with pytest.raises(ValueError, match="given twice"):
        add(index, [7, 7])
    assert len(index) == 2


def test_pins_are_counted():
    index = Index()
    index.pin(np.array([4, 5]))
    index.pin(np.array([4]))
    index.unpin(np.array([4, 5, 9]))
    assert index.pinned_mask(np.array([3, 4, 5])).tolist() == [False, True, False]
    index.unpin(np.array([4]))
    assert not index.pinned_mask(np.array([4]))[0]


def test_snapshots_are_read_only():
    index = Index()
    add(index, [1])
    with pytest.raises(ValueError, match="read-only"):
        index.ids_of(0)[0] = 3
    assert index.ids_of(99).tolist() == []


def test_readers_never_see_a_half_written_index():
    index = Index()
    stop = threading.Event()
    wrong = []

    def read():
        while not stop.is_set():
            ids = index.ids_of(1)
            before = ids.copy()
            found = index.lookup(ids)
            # A record may be gone by now, but never show another label or length than its own.
            intact = np.isin(found.labels, (1, -1)).all() and np.isin(found.lengths, (8, -1)).all()
            if not intact or not np.array_equal(ids, before) or np.any(np.diff(ids) <= 0):
                wrong.append(ids)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, 60_000, 300):
        ids = np.arange(start, start + 300)
        index.add(ids, ids % 3, ids * 0, ids % 3 * 7 + 1)
        index.remove(ids[::2] - 3000)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
