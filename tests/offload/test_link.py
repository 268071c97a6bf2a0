"""The traffic between a device and the host keeps its rules of order, under streams that are late.

The device here is one whose streams do nothing before somebody waits for them, and then no more
than they must; so a bucket that is read before its event, filled again before it has left, or
whose gradient nobody holds, shows in the parameters. A test beside each rule breaks it.
"""

import gc
import subprocess
import sys
from collections import deque
from contextlib import nullcontext, suppress

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from carousel.errors import BadInputError, WorkerError
from carousel.offload import TieredAdamW
from carousel.offload.buckets import Buckets, make_buckets
from carousel.offload.checks import check_devices
from carousel.offload.cuda import CudaLink
from carousel.offload.link import Cargo, HostLink
from carousel.offload.plan import ParamSpec, make_plan
from carousel.offload.update import copy_params

SMALL = {"chunk_numel": 1024, "ram_budget": "700KiB"}
"""Buckets of 11 KiB: five chunks of 16 bits, one of 32."""


class LateEvent:
    def __init__(self, device):
        self.device, self.mark = device, None

    def record(self, stream):
        self.mark = Mark(stream)
        stream.todo.append(self.mark)

    def synchronize(self):
        if self.mark is not None and "arrivals" not in self.device.broken:
            self.mark.reach()


class Mark:
    def __init__(self, stream):
        self.stream, self.reached = stream, False

    def reach(self):
        while not self.reached:
            self.stream.advance()

    def __call__(self):
        self.reached = True


class LateStream:
    def __init__(self, device, name):
        self.device, self.name, self.todo = device, name, deque()

    def wait_event(self, event):
        if event.mark is not None and self.name not in self.device.broken:
            self.todo.append(event.mark.reach)

    def advance(self):
        self.todo.popleft()()

    def synchronize(self):
        while self.todo:
            self.advance()


class LateDevice:
    """See above. `broken` names streams that wait for no event, or ``arrivals``."""

    device = torch.device("cpu")

    def __init__(self, broken=(), *, copies=None, pinnable=1 << 40):
        self.broken, self.copies, self.pinnable = broken, copies, pinnable
        self.compute = LateStream(self, "compute")
        self.streams, self.pinned = [], {}

    def stream(self):
        self.streams.append(LateStream(self, ("down", "up")[len(self.streams)]))
        return self.streams[-1]

    def event(self):
        return LateEvent(self)

    def current(self):
        return self.compute

    def copy(self, into, source, stream):
        if self.copies is not None:
            self.copies -= 1
            if self.copies < 0:
                raise RuntimeError("the bus is down")
        assert into.dtype == source.dtype
        to, at = borrowed(into), borrowed(source)
        stream.todo.append(lambda: to().copy_(at()))

    def pin(self, area):
        if area.nbytes > self.pinnable:
            raise WorkerError("the driver cannot pin that much")
        self.pinned[area.ctypes.data] = area.nbytes

    def unpin(self, area):
        assert not any(stream.todo for stream in self.streams), "a copy is under way"
        del self.pinned[area.ctypes.data]


class HastyDevice(LateDevice):
    """Copies at once, whatever it should have waited for."""

    def copy(self, into, source, stream):
        into.copy_(source)


def borrowed(tensor):
    """A tensor whose memory is somebody else's as soon as nobody but this holds it."""
    kept, dtype = StorageWeakRef(tensor.untyped_storage()), tensor.dtype
    start, count = tensor.storage_offset(), len(tensor)

    def use():
        assert not kept.expired(), "memory was given to somebody else before it was copied"
        storage = torch.UntypedStorage._new_with_weak_ptr(kept.cdata)
        return torch.empty(0, dtype=dtype).set_(storage, start, (count,))

    return use


@pytest.fixture
def linked(monkeypatch):
    """Puts a late device between parameters and host, for optimizers that are made after it."""
    devices = []

    def link(*broken, kind=LateDevice, **options):
        device = kind(broken, **options)
        devices.append(device)
        monkeypatch.setattr("carousel.offload.optim.link_for", lambda _: CudaLink(device))
        monkeypatch.setattr("carousel.offload.book.copy_params", read)
        return device

    def read(params, chunk, fields):
        """A copy from a device into the host's own memory waits for the caller's stream."""
        devices[-1].compute.synchronize()
        copy_params(params, chunk, fields)

    yield link
    monkeypatch.undo()


def train(twins, params, optimizer, device, steps, *, first=0):
    """Backward passes whose gradients are there late, and forward passes that look at values."""

    def backward(step):
        twins.gradients(params, step)
        for param in params:
            if param.grad is not None:
                value, param.grad = param.grad, torch.full_like(param.grad, torch.nan)
                device.compute.todo.append(lambda to=param.grad, value=value: to.copy_(value))

    for step in range(first, first + steps):
        backward(step)
        optimizer.step()
        device.compute.synchronize()


def both(twins, linked, *broken, dtype=torch.float32, steps=6, **options):
    """The same training with parameters on the host and on a late device."""
    theirs, host = twins.ours(twins.params(dtype=dtype), **options)
    twins.train(theirs, host, steps)
    saved = host.state_dict() if options.get("ram_budget") is None else None
    host.close()
    if "storage" in options:
        options = options | {"fresh": True}
    device = linked(*broken)
    mine, ours = twins.ours(twins.params(dtype=dtype), **options)
    train(twins, mine, ours, device, steps)
    if saved is not None:
        twins.same_state(saved, ours.state_dict())
    seen = [param.detach().clone() for param in mine]
    with suppress(AssertionError) if broken else nullcontext():  # it complains of what it broke
        ours.close()
    return theirs, seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"chunk_numel": 4096}, SMALL], ids=["one", "all", "few"])
def test_parameters_and_states_are_those_of_the_host(twins, linked, dtype, options):
    if dtype == torch.float64:
        options = options | {"ram_budget": "1200KiB"} if options else options
    theirs, mine = both(twins, linked, dtype=dtype, **options)
    assert twins.same(theirs, mine)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_so_are_those_on_storage_and_what_is_recovered(twins, linked, tmp_path, dtype):
    longer, host = twins.ours(twins.params(dtype=dtype))
    twins.train(longer, host, 8)
    options = {"storage": tmp_path, "ram_budget": "300KiB", "chunk_numel": 1024}
    theirs, mine = both(twins, linked, dtype=dtype, **options)
    assert twins.same(theirs, mine)
    device = linked()
    again = twins.params(7, dtype=dtype)
    more = TieredAdamW.resume(twins.groups(again), tmp_path, ram_budget="300KiB")
    assert twins.same(again, mine)
    train(twins, again, more, device, 2, first=6)
    more.close()
    assert twins.same(again, longer)


@pytest.mark.parametrize("broken", ["arrivals", "down", "compute"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_wait_is_needed(twins, linked, broken, dtype):
    theirs, mine = both(twins, linked, broken, dtype=dtype, **SMALL)
    assert not twins.same(theirs, mine)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_callers_stream_is_the_one_of_the_moment(twins, linked, dtype):
    """Steps under another stream each time, ordered by the caller as torch asks for."""
    theirs, host = twins.ours(twins.params(dtype=dtype), **SMALL)
    device = linked()
    mine, ours = twins.ours(twins.params(dtype=dtype), **SMALL)
    twins.train(theirs, host, 4)
    seen = []
    for step in range(4):
        before, device.compute = device.compute, LateStream(device, "compute")
        end = device.event()
        end.record(before)
        device.compute.wait_event(end)
        train(twins, mine, ours, device, 1, first=step)
        seen.append(device.compute)
    assert twins.same(theirs, mine)
    assert not any(stream.todo for stream in seen)
    ours.close()


@pytest.mark.parametrize("kind", [LateDevice, HastyDevice])
def test_gradients_are_clipped_before_they_come_down(twins, linked, kind):
    theirs, host = twins.ours(twins.params(dtype=torch.bfloat16), **SMALL)
    for step in range(3):
        twins.gradients(theirs, step)
        torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        host.step()
    device = linked(kind=kind)
    mine, ours = twins.ours(twins.params(dtype=torch.bfloat16), clip_norm=0.5, **SMALL)
    twins.train(mine, ours, 3)
    device.compute.synchronize()
    assert twins.same(theirs, mine)
    ours.close()


def test_a_hasty_device_would_show_gradients_that_are_not_whole(twins, linked):
    theirs, host = twins.ours(twins.params(), **SMALL)
    twins.train(theirs, host, 1)
    device = linked(kind=HastyDevice)
    mine, ours = twins.ours(twins.params(), **SMALL)
    train(twins, mine, ours, device, 1)
    assert not twins.same(theirs, mine)
    ours.close()


def test_a_step_that_overflowed_tells_the_streams_nothing(twins, linked):
    device = linked()
    params, ours = twins.ours(twins.params(dtype=torch.float16), **SMALL)
    before = [param.detach().clone() for param in params]
    ours.grad_scale, ours.found_inf = torch.tensor(8.0), torch.tensor(1.0)
    twins.gradients(params, 0)
    ours.step()
    assert twins.same(before, params)
    assert not any(stream.todo for stream in (*device.streams, device.compute))
    assert not ours.state
    ours.close()


def test_a_bucket_is_not_filled_again_before_it_has_left():
    """The order alone: both ways wait for nothing but each other."""
    plan = make_plan([ParamSpec((640,), "bfloat16")], 64)
    device = LateDevice()
    link = CudaLink(device)
    link.fit(Buckets(2, 128), masters=True)
    param = torch.zeros(640, dtype=torch.bfloat16)
    grad = torch.arange(640, dtype=torch.bfloat16)
    crossing = link.crossing(Cargo([param], {}, {0: Moving(grad)}))
    crossing.expect(plan.chunks)
    for chunk in plan.chunks:
        crossing.land(chunk)
        (segment,) = chunk.segments
        assert torch.equal(crossing.grad(segment), grad[segment.start : segment.start + 64])
        crossing.place(segment).copy_(crossing.grad(segment) + 1)
        crossing.leave(chunk)
    crossing.finish()
    device.compute.synchronize()
    assert torch.equal(param, grad + 1)
    link.close()


class Moving:
    def __init__(self, grad):
        self.grad = grad


def test_gradients_are_held_until_they_have_come():
    plan = make_plan([ParamSpec((256,), "bfloat16")], 64)
    device = LateDevice()
    link = CudaLink(device)
    link.fit(Buckets(4, 128), masters=True)
    active = {0: Moving(torch.ones(256, dtype=torch.bfloat16))}
    crossing = link.crossing(Cargo([torch.zeros(256, dtype=torch.bfloat16)], {}, active))
    crossing.expect(plan.chunks)
    kept = StorageWeakRef(active[0].grad.untyped_storage())
    active[0].grad = None
    gc.collect()
    for chunk in plan.chunks:
        assert not kept.expired()
        crossing.land(chunk)
        assert bool((crossing.grad(chunk.segments[0]) == 1).all())
    assert kept.expired()
    crossing.abandon()
    link.close()


def test_parameters_are_held_until_their_values_are_there():
    (chunk,) = make_plan([ParamSpec((64,), "bfloat16")], 64).chunks
    device = LateDevice()
    link = CudaLink(device)
    link.fit(Buckets(1, 128), masters=True)
    param, grad = torch.zeros(64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    crossing = link.crossing(Cargo([param], {}, {0: Moving(grad)}))
    crossing.expect([chunk])
    crossing.land(chunk)
    crossing.leave(chunk)
    crossing.finish()
    kept = StorageWeakRef(param.untyped_storage())
    del crossing, param
    gc.collect()
    assert not kept.expired()
    device.compute.synchronize()
    link.close()
    assert kept.expired()


def test_freed_memory_would_show():
    device = LateDevice()
    stream, into = device.stream(), torch.zeros(4)
    device.copy(into, torch.ones(4), stream)
    gc.collect()
    with pytest.raises(AssertionError, match="given to somebody else"):
        stream.synchronize()


@pytest.mark.parametrize("copies", [0, 9, 25, 39])
def test_an_error_in_the_middle_leaves_nothing_waiting(twins, linked, copies):
    device = linked(copies=copies)
    params, ours = twins.ours(twins.params(dtype=torch.bfloat16), **SMALL)
    with pytest.raises(RuntimeError, match="the bus is down"):
        train(twins, params, ours, device, 1)
    assert not any(stream.todo for stream in device.streams)
    assert all(not slot.coming and not slot.going for slot in ours._book.link._slots)
    with pytest.raises(Exception, match="broken off"):
        ours.step()
    ours.close()
    assert not device.pinned


def test_what_is_pinned_is_exact_counted_and_given_back(twins, linked):
    device = linked()
    params, ours = twins.ours(twins.params(dtype=torch.bfloat16), **SMALL)
    room = ours._book.shelf.states.room
    assert list(device.pinned.values()) == [room.buckets.total_bytes]
    assert room.used_bytes <= 700 << 10
    assert ours.stats().ram_bytes == room.used_bytes
    train(twins, params, ours, device, 2)
    assert len(device.pinned) == 1
    assert len(device.streams) == 2
    ours.close()
    ours.close()
    assert not device.pinned


def test_an_optimizer_that_is_forgotten_gives_it_back(twins, linked):
    device = linked()
    params, ours = twins.ours(twins.params(dtype=torch.bfloat16))
    train(twins, params, ours, device, 1)
    assert device.pinned
    del ours
    gc.collect()
    assert not device.pinned


def test_too_little_to_pin_is_an_error_that_changes_nothing(twins, linked, tmp_path):
    linked(pinnable=1000)
    with pytest.raises(WorkerError, match="cannot pin"):
        twins.ours(storage=tmp_path)
    linked()
    twins.ours(storage=tmp_path)[1].close()


def test_new_parameters_get_buckets_that_fit(twins, linked):
    theirs, host = twins.ours(twins.params(dtype=torch.bfloat16))
    device = linked()
    mine, ours = twins.ours(twins.params(dtype=torch.bfloat16))
    for params, optimizer in ((theirs, host), (mine, ours)):
        params.append(torch.nn.Parameter(torch.ones(70_000, dtype=torch.bfloat16)))
        optimizer.add_param_group({"params": params[-1:]})
    twins.train(theirs, host, 3)
    train(twins, mine, ours, device, 3)
    assert twins.same(theirs, mine)
    assert list(device.pinned.values()) == [ours._book.shelf.states.room.buckets.total_bytes]
    ours.close()


def test_buckets_are_as_large_as_the_bus_wants_and_a_budget_allows():
    chunks = make_plan([ParamSpec((100 << 20,), "bfloat16")], 1 << 20).chunks
    assert make_buckets(chunks, "some", masters=True, budget=None) == Buckets(4, 8 << 20)
    assert make_buckets(chunks, "some", masters=True, budget=64 << 20) == Buckets(4, 2 << 20)
    assert make_buckets(chunks, "some", masters=False, budget=1 << 40) == Buckets(4, 8 << 20)
    assert make_buckets(chunks, "nowhere", masters=True, budget=None).total_bytes == 0


def test_gradients_on_the_host_are_not_copied():
    param, grad = torch.zeros(640), torch.ones(640)
    (chunk,) = make_plan([ParamSpec((640,), "float32")], 640).chunks
    crossing = HostLink().crossing(Cargo([param], {}, {0: Moving(grad)}))
    crossing.land(chunk)
    (segment,) = chunk.segments
    assert crossing.grad(segment).data_ptr() == grad.data_ptr()
    assert crossing.values(segment).data_ptr() == param.data_ptr()
    assert crossing.place(segment).data_ptr() == param.data_ptr()


def test_parameters_on_several_devices_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        params = [torch.empty(3, device=name) for name in ("cuda:0", "cuda:0", "cuda:1")]
    check_devices(params[:2])
    with pytest.raises(BadInputError, match="cuda:0 and on cuda:1: make one optimizer"):
        check_devices(params)


def test_nothing_of_cuda_is_imported_for_parameters_on_the_host():
    code = (
        "import sys, torch; from carousel.offload import TieredAdamW;"
        "p = torch.nn.Parameter(torch.ones(3)); p.grad = torch.ones(3); TieredAdamW([p]).step();"
        "assert not torch.cuda.is_initialized();"
        "print([n for n in ('cuda', 'device') if 'carousel.offload.' + n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
