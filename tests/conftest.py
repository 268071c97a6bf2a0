"""Samples whose every byte tells which sample they are, and a tier that misbehaves on demand."""

import signal
import threading

import numpy as np
import pytest
import torch

from carousel.memory import Carousel, Replay
from carousel.memory.schema import Schema
from carousel.storage import MemoryTier, ReadStatus


@pytest.fixture(scope="session", autouse=True)
def heed_ctrl_c():
    """Whoever starts the tests in the background of a script makes them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class CodedSamples:
    """x, label and digest of a sample all follow from its id; a mix of two samples shows."""

    shape = (3, 8, 8)
    classes = 5
    schema = Schema.of({"x": torch.empty(0, *shape, dtype=torch.uint8), "digest": torch.empty(0)})

    def fields(self, ids):
        ids = np.asarray(ids, np.int64)
        mixed = ids[:, None] * 2654435761 + np.arange(192) * 40503
        x = ((mixed >> 16) ^ mixed).astype(np.uint8)
        digest = (x.sum(1) * 31 + self.labels(ids)).astype(np.float32)
        return {"x": torch.from_numpy(x).view(-1, *self.shape), "digest": torch.from_numpy(digest)}

    def labels(self, ids):
        return np.asarray(ids, np.int64) % self.classes

    def tasks(self, ids):
        return np.asarray(ids, np.int64) % 3

    def fill_tier(self, tier, count):
        ids = np.arange(tier.reserve_ids(count), tier.high_water)
        batch = self.schema.to_records(ids, self.labels(ids), self.tasks(ids), self.fields(ids))
        tier.put_many(batch)
        tier.flush()
        return ids

    def fill_slab(self, slab, ids):
        slots = np.arange(len(ids))
        slab.write(slots, self.fields(ids), ids, self.labels(ids), self.tasks(ids))

    def save(self, memory, count):
        ids = np.arange(memory.tier.reserve_ids(count), memory.tier.high_water)
        memory.save(ids, self.labels(ids), self.tasks(ids), **self.fields(ids))
        return ids

    def admit(self, memory, ids):
        return memory.admit(
            ids, self.labels(ids), self.tasks(ids), fetch=lambda rows: self.fields(ids[rows])
        )

    def check(self, replay: Replay):
        expected = self.fields(replay.ids)
        assert torch.equal(replay.x, expected["x"])
        assert torch.equal(replay.fields["digest"], expected["digest"])
        assert replay.labels.tolist() == self.labels(replay.ids).tolist()
        assert replay.tasks.tolist() == self.tasks(replay.ids).tolist()

    def train(self, memory: Carousel, steps, rows=16):
        """A training loop without a model; returns the ids after each step."""
        history = []
        for _ in range(steps):
            replay = memory.sample(rows)
            self.check(replay)
            logits = torch.nn.functional.one_hot(replay.labels, self.classes).float()
            memory.observe(replay, logits)
            memory.step()
            history.append(memory.sample_slots(memory.filled_slots()).ids.tolist())
        return history


class BrokenTier(MemoryTier):
    """A tier in RAM whose reads can be held up, fail, or find damage."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.open = threading.Event()
        self.open.set()
        self.reading = threading.Event()
        self.error = None
        self.bad = {}
        self.read_calls = 0

    def get_into(self, ids, out, rows):
        self.read_calls += 1
        self.reading.set()
        self.open.wait()
        if self.error is not None:
            raise self.error
        statuses = super().get_into(ids, out, rows)
        for i, sample in enumerate(ids.tolist()):
            if sample in self.bad:
                statuses[i] = self.bad[sample]
                for array in out.values():
                    array[rows[i]] = 0
        return statuses

    def damage(self, ids, status=ReadStatus.CORRUPT):
        self.bad.update(dict.fromkeys(np.asarray(ids).tolist(), status))


@pytest.fixture
def coded():
    return CodedSamples()


@pytest.fixture
def broken_tier():
    tier = BrokenTier()
    yield tier
    tier.open.set()
    tier.close()
