"""kill -9 while records are rewritten: each is the old one or the new one, and none is lost."""

import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from carousel.storage import LMDBTier
from carousel.storage.tier import ReadStatus

COUNT = 500

REVISE = """
import os, sys
import numpy as np
from carousel.storage import LMDBTier
from carousel.storage.record import FieldSpec, RecordBatch
path, mode, budget, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
layout = (FieldSpec("x", "int64", (100,)), FieldSpec("turn", "int64", ()))
with_budget = {"budget": budget} if budget else {}
tier = LMDBTier(path, durability=mode, **with_budget)
ids = np.arange(count)
if tier.high_water == 0:
    x = np.repeat(ids[:, None], 100, axis=1)
    tier.put_many(RecordBatch(ids, ids % 7, ids % 3, layout, {"x": x, "turn": 0 * ids}))
turn = int(tier.get_many(ids[:1])[0].fields["turn"]) if tier.contains(ids[:1])[0] else 0
while True:
    turn += 1
    assert tier.revise_many(ids, {"turn": np.full(count, turn)}) == count
    os.write(1, b"%d\\n" % turn)
"""


def kill_at_a_random_moment(path, mode, budget, moments):
    """Let a child revise, kill it, and return the last turn that it finished."""
    child = subprocess.Popen(
        [sys.executable, "-c", REVISE, str(path), mode, budget, str(COUNT)],
        stdout=subprocess.PIPE,
    )
    first = child.stdout.readline()
    timer = threading.Timer(moments.uniform(0, 0.05), child.kill)
    timer.start()
    lines = (first + child.stdout.read()).split(b"\n")[:-1]
    timer.join()
    child.wait()
    child.stdout.close()
    return int(lines[-1])


@pytest.mark.parametrize(
    ("mode", "budget"), [("durable", ""), ("process", ""), ("process", "1MiB")]
)
def test_a_record_is_the_old_one_or_the_new_one(tmp_path, mode, budget):
    moments = random.Random(f"{mode}{budget}")
    path, ids = tmp_path / "db", np.arange(COUNT)
    for _ in range(4):
        finished = kill_at_a_random_moment(path, mode, budget, moments)
        with LMDBTier(path, durability=mode, budget=budget or None) as tier:
            out = {"x": np.zeros((COUNT, 100), np.int64), "turn": np.zeros(COUNT, np.int64)}
            assert (tier.get_into(ids, out, ids) == ReadStatus.OK).all()
            assert (out["x"] == ids[:, None]).all()
            turns = out["turn"]
            assert set(turns.tolist()) <= {finished, finished + 1}
            assert (np.diff(turns) <= 0).all()  # groups follow each other in the order of ids
            assert len(tier.entries()) == COUNT
            assert tier.verify().ok
            # whole again, so that the next child starts from one turn
            tier.revise_many(ids, {"turn": np.full(COUNT, finished + 1)})
    assert finished >= 4
