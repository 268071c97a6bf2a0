"""One run of a study in a process of its own, on this machine or on one of a cluster.

`run_job` starts ``python -m carousel.runs.study.worker`` and waits for it. The process reads its
job from standard input and stops at the end of a step, with a checkpoint, as soon as that is
closed: whoever started it asked so, or is dead.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from carousel.runs.folder import RunFolder
from carousel.runs.launch import plan_launch
from carousel.runs.progress import Silence

__all__ = ["Job", "Verdict", "run_job"]

_POLL = 0.1
_PATIENCE = 120.0
"""Seconds that a run has to finish its step and write a checkpoint when it is asked to stop."""

_STOPPED = 130


@dataclass(frozen=True, slots=True)
class Job:
    """A run to make, as plain values.

    Args:
        settings: flat keys of ``carousel train``.
        out: absolute path of the run folder.
        log: absolute path of a file for what the process says; also its lock.
        cwd: working folder, for relative paths among the settings.
        fresh: discard what is there.
    """

    settings: Mapping[str, Any]
    out: str
    log: str
    cwd: str
    fresh: bool = False

    def command(self) -> list[str]:
        """The words after ``carousel`` that make the same run."""
        words = [f"{key}={json.dumps(value)}" for key, value in self.settings.items()]
        return ["train", *(w for word in words for w in ("--set", word)), "--out", self.out]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a process ended.

    Args:
        state: done, failed, or stopped because it was asked to.
        error: one line, empty unless it failed.
    """

    state: str
    error: str = ""


def run_job(job: Job, asked_to_stop: Callable[[], bool] = lambda: False) -> Verdict:
    """Make a run, or go on with it, and wait for its end.

    Args:
        job: the run.
        asked_to_stop: looked at now and then.
    """
    log = Path(job.log)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as said:
        start = said.tell()
        process = _start(job, said)
    try:
        while process.poll() is None and not asked_to_stop():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL)
    finally:
        stopped = process.poll() is None
        code = _stop(process)
    return _verdict(code, stopped, log, start)


def _start(job: Job, said: IO[bytes]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "carousel.runs.study.worker"],
        stdin=subprocess.PIPE,
        stdout=said,
        stderr=said,
        cwd=job.cwd,
        # The run finds the modules that this process does, and does not share its Ctrl-C.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it is dead already; its code says why
        process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        process.stdin.flush()
    return process


def _stop(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        return process.wait(_PATIENCE)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _verdict(code: int, stopped: bool, log: Path, start: int) -> Verdict:
    if code == 0:
        return Verdict("done")
    if stopped or code == _STOPPED:
        return Verdict("stopped")
    with log.open("rb") as said:
        said.seek(start)
        lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line]
    if code < 0:
        return Verdict("failed", f"killed by signal {signal.Signals(-code).name}")
    return Verdict("failed", lines[-1] if lines else f"ended with exit code {code}")


def main() -> None:
    """The process: train what standard input says, and end with a line if that fails."""
    job = Job(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_stop_with_the_pipe, daemon=True).start()
    sys.argv = ["carousel", *job.command()]  # what `environment.json` names
    with _alone(Path(job.log)):
        try:
            _train(job)
        except KeyboardInterrupt:
            sys.exit(_STOPPED)
        except Exception as error:
            name = "" if type(error).__module__ == "carousel.errors" else type(error).__name__
            line = " ".join(f"{name}: {error}".removeprefix(": ").split())
            print(line, file=sys.stderr, flush=True)
            sys.exit(1)


def _train(job: Job) -> None:
    warnings.simplefilter("ignore")
    folder = RunFolder(Path(job.out))
    if not folder.started and not folder.empty:
        shutil.rmtree(folder.path)  # killed before its settings were written: holds nothing
    launch = plan_launch(
        command_line={**job.settings, "out": Path(job.out)}, resume=not job.fresh, fresh=job.fresh
    )
    if launch.action == "show":
        return
    print(shlex.join(sys.argv), flush=True)
    import torch  # after what takes no time to refuse

    from carousel.runs.train import train

    torch.set_num_threads(1)
    train(launch, Silence())


def _stop_with_the_pipe() -> None:
    # Not through `sys.stdin`, whose lock a thread must not hold when the interpreter ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait for another process of the same run, which may be writing its last checkpoint."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
