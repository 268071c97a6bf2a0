"""Hints are joined, reach the system, and never fail."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carousel.storage.lmdb.prefetch import Prefetcher, merge_ranges

needs_fadvise = pytest.mark.skipif(
    not hasattr(os, "posix_fadvise"), reason="this system has no posix_fadvise"
)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=30))
def test_merged_ranges_cover_the_same_bytes(ranges):
    offsets = np.array([start for start, _ in ranges], np.int64)
    lengths = np.array([length for _, length in ranges], np.int64)
    merged = list(merge_ranges(offsets, lengths))
    wanted = {byte for start, length in ranges for byte in range(start, start + length)}
    covered = [byte for start, length in merged for byte in range(start, start + length)]
    assert set(covered) == wanted
    assert len(covered) == len(wanted)
    assert merged == sorted(merged)


@needs_fadvise
def test_hints_reach_the_system_and_unknown_places_do_not(tmp_path, monkeypatch):
    file = tmp_path / "data"
    file.write_bytes(bytes(1 << 16))
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *what: asked.append(what))
    prefetcher = Prefetcher(file)
    count = prefetcher.hint(np.array([8192, -1, 0, 4096]), np.array([100, 50, 4096, 4096]))
    prefetcher.close()
    assert count == 1
    assert asked == [(0, 8292, os.POSIX_FADV_WILLNEED)]


@needs_fadvise
def test_a_hint_never_fails(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(b"short")
    prefetcher = Prefetcher(file)
    assert prefetcher.hint(np.array([1 << 40]), np.array([1 << 20])) == 8
    assert prefetcher.hint(np.empty(0, np.int64), np.empty(0, np.int64)) == 0
    prefetcher.close()
    prefetcher.close()
    assert prefetcher.hint(np.array([0]), np.array([5])) == 0


def test_without_fadvise_it_does_nothing(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    file = tmp_path / "data"
    file.write_bytes(b"data")
    prefetcher = Prefetcher(file)
    assert prefetcher.hint(np.array([0]), np.array([4])) == 0
    prefetcher.close()
