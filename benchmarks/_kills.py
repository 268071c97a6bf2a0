"""Training that is killed and resumed, with torch's optimizer to say what must have come back.

A nursery is a process that has imported torch and forks a child for each run, so that many can be
killed in a minute. A child tells when it begins, is ready to step, begins and ends a commit, and
returns from a step; whoever kills it waits for one of these and a random time more.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from carousel.errors import BadInputError
from carousel.offload import TieredAdamW
from carousel.offload.commit import CommitLog
from carousel.storage.tier import Durability

__all__ = ["Campaign", "Fate", "Nursery", "WHERE", "Where", "campaign", "nursery"]

Where: TypeAlias = Literal["init", "commit", "step"]
WHERE: tuple[Where, ...] = ("init", "commit", "step")

SHAPES = ((1,), (7,), (63,), (1001,), (257, 64), (129, 131))


@dataclass(frozen=True)
class Campaign:
    """One training that is killed again and again.

    Args:
        aims: where to hit it, one kill after the other.
        commit_every: as for the optimizer, as are `delay` and `durability`.
        delay: see there.
        durability: see there.
        ram_budget: see there; with the default nothing stays in RAM.
        chunk_numel: see there.
        slowed: seconds that a commit takes longer, half of them before it is there.
        seed: of the moments.
    """

    aims: Sequence[Where]
    commit_every: int = 1
    delay: Literal[0, 1] = 0
    durability: Durability = "process"
    ram_budget: str = "300KiB"
    chunk_numel: int = 4096
    slowed: float = 0.0
    seed: int = 0

    @property
    def may_lose(self) -> int:
        """Steps that returned and need not be there again."""
        return self.commit_every + self.delay


class Fate(NamedTuple):
    """What one kill led to.

    Args:
        where: the child was then.
        told: the last step that returned, in this run or an earlier one.
        recovered: the step that was resumed from, None where nothing had been committed.
        same: whether parameters, states and payload are those of that step, bit for bit.
    """

    where: Where
    told: int
    recovered: int | None
    same: bool

    @property
    def lost(self) -> int:
        """Steps that returned and are gone."""
        return self.told - (self.recovered or 0)


def campaign(nursery: Nursery, folder: Path, plan: Campaign) -> Iterator[Fate]:
    """Kill a training, resume it to look, and go on, until all kills are done.

    Args:
        nursery: for the children.
        folder: for the optimizer, new.
        plan: of it all.
    """
    moments, reference = random.Random(plan.seed), Reference()
    run = Run(str(folder), plan)
    told = 0
    for aim in plan.aims:
        where, last = nursery.kill_one(run, aim, moments)
        told = max(told, last)
        params = parameters(seed=7)
        try:
            resumed = TieredAdamW.resume(groups(params), folder)
        except BadInputError:  # killed before the first commit
            yield Fate(where, told, None, same=not run.resume)
            told = 0
            continue
        with resumed:
            found = resumed.stats().steps
            yield Fate(where, told, found, reference.matches(found, params, resumed))
        told, run = found, replace(run, resume=True)


class Reference:
    """What torch's own optimizer has after every number of steps."""

    def __init__(self) -> None:
        self._params = parameters(seed=0)
        self._optimizer = torch.optim.AdamW(groups(self._params), fused=True)
        self._after: list[list[Tensor]] = []
        self._note()

    def matches(self, steps: int, params: Sequence[Tensor], optimizer: TieredAdamW) -> bool:
        """Whether an optimizer that was resumed has just this, and the payload of that commit."""
        while len(self._after) <= steps:
            set_gradients(self._params, len(self._after) - 1)
            self._optimizer.step()
            self._note()
        ours, theirs = _values(params, optimizer), self._after[steps]
        return (
            optimizer.resumed_payload == {"before": steps - 1}
            and len(ours) == len(theirs)
            and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        )

    def _note(self) -> None:
        self._after.append([value.clone() for value in _values(self._params, self._optimizer)])


class Nursery:
    """A process whose children train, one at a time; see `nursery`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._news = process.stdin, process.stdout
        self._seconds: dict[Where, float] = dict.fromkeys(WHERE, 0.01)

    def kill_one(self, run: Run, aim: Where, moments: random.Random) -> tuple[Where, int]:
        """Let a child train, and kill it.

        Args:
            run: of the child.
            aim: where to hit it, which a busy machine may miss.
            moments: says after how many commits or steps, and how much later.

        Returns:
            Where it was hit, and the last step that it told of, 0 if none.
        """
        self._orders.write(json.dumps(asdict(run)).encode() + b"\n")
        self._orders.flush()
        word, child = self._hear()
        at, told = _At(), 0
        wanted = 1 if aim == "init" else moments.randint(1, 6)
        while word != "dead":
            at.move(word, self._seconds)
            wanted -= word == _MARKS[aim]
            if wanted == 0 and word == _MARKS[aim]:
                time.sleep(moments.uniform(0, self._seconds[aim]))
                os.kill(child, signal.SIGKILL)
            word, number = self._hear()
            told = max(told, number if word == "returned" else 0)
        if number != signal.SIGKILL:
            raise RuntimeError(f"a training ended by itself, with status {number}")
        return at.where, told

    def _hear(self) -> tuple[str, int]:
        word, number = self._news.readline().split()
        return word.decode(), int(number)


@contextmanager
def nursery() -> Iterator[Nursery]:
    """A process that waits to be told what to train; it ends with the block."""
    command = [sys.executable, "-m", "benchmarks._kills"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=Path(__file__).parents[1],
    ) as process:
        yield Nursery(process)
        assert process.stdin is not None
        process.stdin.close()


@dataclass(frozen=True)
class Run:
    """What a child trains.

    Args:
        folder: of the optimizer.
        plan: says how.
        resume: go on from the newest commit.
    """

    folder: str
    plan: Campaign
    resume: bool = False

    @classmethod
    def from_json(cls, line: str) -> Run:
        """What ``json.dumps(asdict(run))`` made of one."""
        fields = json.loads(line)
        return cls(**fields | {"plan": Campaign(**fields["plan"])})


def parameters(seed: int) -> list[nn.Parameter]:
    """Of odd sizes."""
    numbers = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=numbers)) for shape in SHAPES]


def groups(params: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Groups with hyper-parameters of their own."""
    return [
        {"params": params[:2]},
        {"params": params[2:4], "lr": 3e-3, "weight_decay": 0.0},
        {"params": params[4:], "betas": (0.8, 0.95), "weight_decay": 0.1},
    ]


def set_gradients(params: Sequence[nn.Parameter], step: int) -> None:
    """Gradients that follow from the step alone, so that a delay changes no value."""
    numbers = torch.Generator().manual_seed(1000 + step)
    for param in params:
        param.grad = torch.randn(param.shape, generator=numbers)


class _At:
    """Where a child is, by what it told; commits are those of another thread than steps."""

    def __init__(self) -> None:
        self.where: Where = "init"
        self._since = time.perf_counter()

    def move(self, word: str, seconds: dict[Where, float]) -> None:
        """Follow a child, and note how long it was where it was."""
        if word in ("returned", "begin"):
            return
        now = time.perf_counter()
        seconds[self.where] = max(0.8 * seconds[self.where], now - self._since)
        self.where, self._since = ("commit" if word == "commit" else "step"), now


_MARKS: dict[Where, str] = {"init": "begin", "commit": "commit", "step": "returned"}
"""What a child tells where it may be killed."""


def _values(params: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All that training has made: parameters, moments and counts of steps."""
    state = optimizer.state_dict()["state"]
    kept = [state[number][name] for number in sorted(state) for name in sorted(state[number])]
    return [*(param.detach() for param in params), *kept]


def _train(run: Run) -> None:
    """Until somebody kills this process."""
    _tell("begin", os.getpid())
    plan = run.plan
    options: dict[str, Any] = {
        "ram_budget": plan.ram_budget,
        "durability": plan.durability,
        "commit_every": plan.commit_every,
        "delay": plan.delay,
        "delay_from": 1,
        "payload": lambda: {"before": step},
    }
    _tell_of_commits(plan.slowed / 2)
    params = parameters(seed=5 if run.resume else 0)
    if run.resume:
        optimizer = TieredAdamW.resume(groups(params), run.folder, **options)
    else:
        optimizer = TieredAdamW(
            groups(params), storage=run.folder, fresh=True, chunk_numel=plan.chunk_numel, **options
        )
    step = optimizer.stats().steps
    _tell("ready")
    while True:
        set_gradients(params, step)
        optimizer.step()
        step += 1
        _tell("returned", step)


def _tell_of_commits(pause: float) -> None:
    """Nothing of a commit changes, but somebody hears when it begins and when it is done."""
    publish = CommitLog.publish

    def told(*args: Any) -> None:
        _tell("commit")
        time.sleep(pause)
        publish(*args)
        time.sleep(pause)
        _tell("committed")

    CommitLog.publish = told  # type: ignore[method-assign, assignment]


def _tell(word: str, number: int = 0) -> None:
    os.write(1, f"{word} {number}\n".encode())


def _bring_up() -> None:
    """Fork a child for every order; returns when there are none to come."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "delay=1", UserWarning)
    TieredAdamW(parameters(seed=0))  # torch imports half of itself when the first one is made
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _train(Run.from_json(line))
        _tell("dead", os.waitpid(child, 0)[1])


if __name__ == "__main__":
    _bring_up()
