"""Where the runs of a study are made: processes of this machine, or a Ray cluster.

Both call `run_job`; folders must be the same on all machines of a cluster.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Collection, Hashable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from importlib.util import find_spec
from typing import Any, Protocol

from carousel.errors import BadInputError
from carousel.runs.study.worker import Job, Verdict, run_job

__all__ = ["LocalPool", "Pool", "RayPool", "check_ray", "usable_processors"]

_PATIENCE = 130.0
"""Seconds for runs of a cluster to stop: a little more than each gives its process."""

_LONGEST_KNOCK = 5.0


class Pool(Protocol):
    """Makes some runs at a time."""

    @property
    def slots(self) -> int:
        """How many runs may be under way."""
        ...

    def submit(self, job: Job) -> Hashable:
        """Start a run; returns its ticket."""
        ...

    def ready(self, tickets: Collection[Any], timeout: float) -> dict[Any, Verdict]:
        """Wait until one of the runs ends, no longer than `timeout` seconds."""
        ...

    def stop(self) -> None:
        """Ask all runs under way to write a checkpoint and end, and wait for that."""
        ...

    def close(self) -> None:
        """Give everything back; no run is under way."""
        ...


class LocalPool:
    """A process a run on this machine.

    Args:
        jobs: runs at a time.
    """

    def __init__(self, jobs: int) -> None:
        self.slots = jobs
        self._threads = ThreadPoolExecutor(jobs)
        self._stopping = threading.Event()

    def submit(self, job: Job) -> Future[Verdict]:
        """Start a run."""
        return self._threads.submit(run_job, job, self._stopping.is_set)

    def ready(
        self, tickets: Collection[Future[Verdict]], timeout: float
    ) -> dict[Future[Verdict], Verdict]:
        """Verdicts of those that ended."""
        done, _ = wait(tickets, timeout, FIRST_COMPLETED)
        return {ticket: ticket.result() for ticket in done}

    def stop(self) -> None:
        """Stop the processes."""
        self._stopping.set()
        self._threads.shutdown(cancel_futures=True)

    def close(self) -> None:
        """End the threads."""
        self.stop()


class RayPool:
    """A task a run on a Ray cluster.

    Args:
        address: of the cluster, or ``"local"`` for one on this machine that ends with the study.
        jobs: runs at a time; by default as many as the cluster has processors.
        gpu: whether a run needs a GPU for itself.

    Raises:
        BadInputError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str, jobs: int | None = None, *, gpu: bool = False) -> None:
        self._ray = _connect(address, jobs)
        resources = self._ray.cluster_resources()
        most = int(resources.get("GPU", 0) if gpu else resources.get("CPU", 1))
        if most < 1:
            self._ray.shutdown()
            raise BadInputError(
                f"the cluster {address} has no {'GPU' if gpu else 'processor'}",
                fix="give another address or --set device=cpu",
            )
        self.slots = min(jobs or most, most)
        self._task = self._ray.remote(num_cpus=1, num_gpus=int(gpu))(run_job)
        self._under_way: set[Any] = set()

    def submit(self, job: Job) -> Any:
        """Start a run; one whose machine dies goes on elsewhere."""
        ticket = self._task.remote(job)
        self._under_way.add(ticket)
        return ticket

    def ready(self, tickets: Collection[Any], timeout: float) -> dict[Any, Verdict]:
        """Verdicts of those that ended."""
        done, _ = self._ray.wait(list(tickets), num_returns=1, timeout=timeout)
        self._under_way -= set(done)
        return {ticket: self._verdict(ticket) for ticket in done}

    def stop(self) -> None:
        """Cancel the tasks; each stops its process first."""
        for ticket in self._under_way:
            self._ray.cancel(ticket)
        under_way = list(self._under_way)
        if under_way:
            self._ray.wait(under_way, num_returns=len(under_way), timeout=_PATIENCE)

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()

    def _verdict(self, ticket: Any) -> Verdict:
        try:
            verdict: Verdict = self._ray.get(ticket)
        except self._ray.exceptions.RayError as error:
            line = str(error).strip().splitlines()
            return Verdict("failed", f"{type(error).__name__}: {line[-1] if line else ''}")
        return verdict


def usable_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_ray() -> None:
    """Refuse a cluster when the package is missing.

    Raises:
        BadInputError: names the command that installs it.
    """
    if find_spec("ray") is None:
        raise BadInputError(
            "--ray is given and Ray is not installed", fix='pip install "carousel-memory[ray]"'
        )


def _connect(address: str, jobs: int | None) -> Any:
    check_ray()
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == "local":
            paths = os.pathsep.join(sys.path)
            ray.init(
                address="local",
                num_cpus=jobs or usable_processors(),
                include_dashboard=False,
                runtime_env={"env_vars": {"PYTHONPATH": paths}},
                **quiet,
            )
        else:
            _knock(address)
            ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInputError(
            f"there is no Ray cluster at {address} ({reason})",
            fix="start one with `ray start --head`, or give --ray local",
        ) from None
    return ray


def _knock(address: str) -> None:
    """See whether somebody listens: Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _LONGEST_KNOCK).close()
