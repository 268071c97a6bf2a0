"""A disk that is really full under an optimizer: a typed error, the last commit intact, and on.

The disk is a small tmpfs in a namespace of its own; without the right to make one this is skipped.
"""

import os
from pathlib import Path

import pytest

SETUP = f"""
import ctypes, os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1] / "offload")!r})
import torch
torch.set_num_threads(1)
from conftest import Twins
from carousel.errors import TierFullError
from carousel.offload import TieredAdamW

disk, twins = Path(sys.argv[1]), Twins()
folder, ballast = disk / "states", disk / "ballast"
OPTIONS = dict(ram_budget="300KiB", durability="process")

def make(**options):
    return twins.ours(storage=folder, chunk_numel=4096, **OPTIONS | options)

def resume(**options):
    params = twins.params(99)
    return params, TieredAdamW.resume(twins.groups(params), folder, **OPTIONS | options)

def reference(steps):
    params, optimizer = twins.torch()
    twins.train(params, optimizer, steps)
    return params, optimizer

def check(params, optimizer, steps, more=3):
    theirs, other = reference(steps)
    assert twins.same(params, theirs)
    for one, two in ((params, optimizer), (theirs, other)):
        twins.train(one, two, more, first=steps)
    assert twins.same(params, theirs)
    twins.same_state(optimizer.state_dict(), other.state_dict())

def fill():
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    assert os.statvfs(disk).f_bavail == 0

def refused(work):
    try:
        work()
    except TierFullError as error:
        assert "full" in str(error) and str(disk) in str(error), error
        return error
    raise AssertionError("nothing was refused")

def punch(file, start, length):
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch = 1 | 2
    with file.open("r+b") as opened:
        done = libc.fallocate(
            opened.fileno(), keep_size_and_punch, ctypes.c_int64(start), ctypes.c_int64(length)
        )
    assert done == 0, os.strerror(ctypes.get_errno())
"""

CASES = {
    "at_creation": """
ballast.write_bytes(bytes(15 << 19))
refused(make)
assert not list(folder.glob("states-*"))
fill()
refused(lambda: twins.ours(storage=disk / "other", **OPTIONS))
ballast.unlink()
params, ours = make(fresh=True)
twins.train(params, ours, 2)
check(params, ours, 2)
ours.close()
""",
    "in_a_step": """
params, ours = make()
twins.train(params, ours, 4)
ours.close()
params, ours = resume()
(file,) = folder.glob("states-*.bin")
states = ours._book.shelf.states
places = [place for place, _ in map(states.places.newest, range(len(states.plan.chunks)))]
for layout, start, place in zip(states.room.layouts, states.file._starts, places):
    punch(file, start + (1 - place) * layout.nbytes, layout.nbytes)  # as of a sparse copy
fill()
refused(lambda: twins.train(params, ours, 2, first=4))
refused(ours.step)
refused(ours.close)
params, ours = resume()  # on the full disk
assert ours.stats().steps == 4
ours.close()
ballast.unlink()
params, ours = resume()
check(params, ours, 4)
ours.close()
""",
    "at_a_commit": """
payload = {}
params, ours = make(payload=lambda: payload)
twins.train(params, ours, 3)
ours.flush()
fill()
payload["large"] = torch.zeros(1 << 19)
refused(lambda: twins.train(params, ours, 2, first=3))
refused(ours.step)
refused(ours.close)
ballast.unlink()
params, ours = resume()
assert ours.resumed_payload == {}
check(params, ours, 3)
fill()
kept = [p.detach().clone() for p in params]
refused(lambda: ours.commit({"large": torch.zeros(1 << 20)}))
refused(ours.close)
ballast.unlink()
params, ours = resume()
assert ours.stats().steps == 6
assert twins.same(params, kept)
ours.close()
""",
    "when_states_move": """
params, ours = make()
twins.train(params, ours, 3)
fill()
state = ours.state_dict()
refused(lambda: ours.load_state_dict(twins.torch(amsgrad=True)[1].state_dict()))
twins.same_state(ours.state_dict(), state)
refused(lambda: ours.export(disk / "exported"))
assert sorted(path.name for path in disk.iterdir()) == ["ballast", "states"]
late = torch.nn.Parameter(torch.ones(300))
ours.add_param_group({"params": [late]})
late.grad = torch.ones(300)
refused(ours.step)
ours.param_groups.pop()
assert len(list(folder.glob("states-*"))) == 1
check(params, ours, 3)  # on the full disk
ours.close()
ballast.unlink()
params, ours = resume()
check(params, ours, 6)
ours.close()
""",
}


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="files cannot be given their space")
@pytest.mark.parametrize("case", CASES)
def test_a_full_disk(small_disk, case):
    small_disk(f"{SETUP}\n{CASES[case]}", "8m")
