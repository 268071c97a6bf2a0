"""`CarMPlugin`: replay from a carousel for any SGD strategy of Avalanche.

After "CarM: Hierarchical Episodic Memory for Continual Learning" (Lee et al., DAC 2022): all past
samples are kept in storage, a few of them in RAM, and what was replayed and is easy for the model
is exchanged in the background, while training goes on, for another stored sample of its class.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from avalanche.benchmarks import CLExperience, OnlineCLExperience
from avalanche.benchmarks.utils import DataAttribute
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory import Carousel, Replay
from carousel.memory.admission import Admission
from carousel.memory.gate import Gate, parse_ratio
from carousel.memory.seeds import fresh_seed, generator
from carousel.storage.tier import Durability, StorageTier
from carousel.strategies.batch import BatchTransform, append_labels, append_samples, batch_transform
from carousel.strategies.draw import Draw, ReplayRule, make_draw
from carousel.strategies.fast import FastMode, check_fast_mode, same_rows, stream_loader
from carousel.strategies.loader import StreamLoader
from carousel.strategies.raw import RawSource, raw_source
from carousel.strategies.update import UpdateRule, make_update

__all__ = ["CarMPlugin"]

_CHECK_ROWS = 4096
_ROW = "carousel_row"
"""Data attribute that says which sample of the experience a row of a mini-batch is."""


class CarMPlugin(SupervisedPlugin):
    """Replay from a hierarchical memory: added to `Naive` it is experience replay.

    Rows of the memory are appended to ``strategy.mbatch`` in the training process; the loader,
    the model and the optimizer stay the user's. Samples are stored raw, before augmentation, and
    transformed when they are replayed.

    Args:
        memory_size: slots in RAM: a number of samples, or bytes such as ``"64MiB"``.
        storage: directory of the LMDB environment that keeps all samples, or any `StorageTier`.
        swap_ratio: share of the replayed rows of a step that leave the memory, 0..1.
        gate: which of them; a name of `carousel.memory.gate` or a callable.
        batch_size_mem: rows to replay a step; by default the strategy's training batch size.
        admission: who gets a slot: ``"class-balanced"``, ``"reservoir"``, ``"ring"``.
        durability: what saved samples survive; see `carousel.storage.Durability`.
        storage_budget: limit of the storage, such as ``"1GiB"`` or a number of samples.
        sync: swap within the step: slower, and repeatable bit for bit.
        seed: of every random choice of the memory.
        update: ``"experience"``: the memory changes at the end of an experience; ``"batch"``:
            after every step, for online streams.
        replay: ``"concat"``: rows are drawn anew each step. ``"mixed"``, the paper's ER: stream
            and memory are shuffled together and an epoch passes once over both; when the loader
            is not ours the memory is dealt evenly to the batches of the stream instead.
        transform: from raw samples to model input, a batch at a time, on the training device; it
            replaces the experience's transforms for replayed rows and in the fast loader. By
            default the experience's own are used: once a batch where they have a true attribute
            ``batched``, else sample by sample.
        fast_loader: ``"auto"``: samples that are plain tensors are loaded a batch at a time if
            the loader is the one that Avalanche made; True insists, False never.
        swap: False keeps the samples stored and the memory still.
        run: name under which the ids of an experience are remembered in the storage; give another
            stream in the same storage another name.

    Attributes:
        carousel: the memory; `Carousel.stats` says what it did.
        memory_rows: where the replayed rows are in the current mini-batch, None if there are none.

    Raises:
        BadInputError: an argument is out of range; nothing was opened.

    Example:
        >>> from avalanche.training.supervised import Naive
        >>> from carousel.models import make_model
        >>> from carousel.storage import MemoryTier
        >>> model = make_model("mlp", (1, 8, 8), 10, seed=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> with CarMPlugin(100, MemoryTier(), swap_ratio=0.5) as plugin:
        ...     strategy = Naive(
        ...         model=model, optimizer=optimizer, plugins=[plugin], evaluator=None
        ...     )
    """

    leaves_loss = True
    """Callbacks before the criterion do not look at ``strategy.loss``; see `LeanTemplate`."""

    def __init__(
        self,
        memory_size: int | str,
        storage: str | Path | StorageTier,
        *,
        swap_ratio: float | str = 0.5,
        gate: str | Gate = "balanced",
        batch_size_mem: int | None = None,
        admission: str | Admission = "class-balanced",
        durability: Durability = "bounded",
        storage_budget: int | str | None = None,
        sync: bool = False,
        seed: int | None = None,
        update: UpdateRule = "experience",
        replay: ReplayRule = "concat",
        transform: BatchTransform | None = None,
        fast_loader: FastMode = "auto",
        swap: bool = True,
        run: str = "run",
    ) -> None:
        super().__init__()
        _check_rules(batch_size_mem, update, replay)
        self._observes = swap and parse_ratio(swap_ratio) > 0
        self.fast_loader = check_fast_mode(fast_loader)
        self.seed = fresh_seed() if seed is None else seed
        self.batch_size_mem = batch_size_mem
        self.update_rule = update
        self.replay_rule = replay
        self.transform = transform
        self.run = run
        self.carousel = Carousel(
            memory_size,
            storage,
            swap_ratio=swap_ratio,
            gate=gate,
            admission=admission,
            durability=durability,
            storage_budget=storage_budget,
            sync=sync,
            seed=self.seed,
            swap=swap,
        )
        self.memory_rows: slice | None = None
        self._update = make_update(update, self.carousel)
        self._loader: StreamLoader | None = None
        self._draw: Draw | None = None
        self._draw_state: dict[str, Any] | None = None
        self._replay: Replay | None = None
        self._rows: Tensor | None = None
        self._close = weakref.finalize(self, self.carousel.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Commit what is queued, stop the threads and close the storage; twice is fine."""
        self._close()

    def replay_mask(self, strategy: Any) -> Tensor:
        """(n,) bool on the training device: which rows of the mini-batch come from the memory."""
        mask = torch.zeros(len(strategy.mb_y), dtype=torch.bool, device=strategy.device)
        if self.memory_rows is not None:
            mask[self.memory_rows] = True
        return mask

    def before_train_dataset_adaptation(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Check the samples of the experience before anything changes."""
        self._source = raw_source(strategy.experience.dataset)
        self._top_label = _check_samples(self._source)
        if self.carousel.schema is not None:
            self.carousel.schema.validate({"x": self._source.rows(torch.tensor([0]))})
        self._transform = batch_transform(self._source, self.transform)

    def after_train_dataset_adaptation(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Let mini-batches tell their rows, when each is to be stored after its step."""
        self._same_rows = same_rows(strategy.adapted_dataset, strategy.experience.dataset)
        if self.update_rule == "batch":
            if not self._same_rows:
                raise BadInputError(
                    "the strategy trains on other samples than those of the experience",
                    fix='use update="experience" with it',
                )
            numbers = DataAttribute(range(len(self._source)), _ROW, use_in_getitem=True)
            strategy.adapted_dataset = strategy.adapted_dataset.update_data_attribute(_ROW, numbers)

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Start saving the experience; take over the loader if that is possible."""
        source = self._source
        first_id = self.carousel.reserve(*_place_of(strategy, self.run), len(source))
        self._update.begin(source, first_id)
        self._loader = self._loader_for(strategy)
        if self._loader is not None:
            strategy.dataloader = self._loader
        batch_size = self.batch_size_mem or strategy.train_mb_size
        rng = generator(self.seed, f"replay {strategy.clock.train_exp_counter}")
        self._draw = make_draw(self.replay_rule, self.carousel, batch_size, rng)
        if self._draw_state is not None:
            self._draw.load_state_dict(self._draw_state)
            self._draw_state = None
        self._checked_output = False

    def before_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Deal the memory out for the epoch, for ``replay="mixed"``."""
        assert self._draw is not None
        self._draw.start_epoch(strategy.dataloader)

    def before_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Append replayed rows to the mini-batch."""
        assert self._draw is not None
        if self.update_rule == "batch":
            self._rows = _take_row_numbers(strategy)
        mbatch = strategy.mbatch
        count = len(mbatch[0])
        joint = None if self._loader is None else self._loader.batch_and_tail(mbatch[0])
        self._replay = replay = self._draw.next(None if joint is None else joint[1])
        if replay is None:
            self.memory_rows = None
            return
        if joint is not None and replay.x is joint[1]:
            mbatch[0] = joint[0]
        else:
            x = replay.x.to(strategy.device, non_blocking=True)
            append_samples(mbatch, x if self._transform is None else self._transform(x))
        append_labels(mbatch, replay.labels, replay.tasks)
        self.memory_rows = slice(count, count + len(replay))

    def after_forward(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Refuse labels that the model has no output for, before the loss does."""
        if not self._checked_output:
            self._check_output(strategy.mb_output)

    def before_backward(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Hand the logits of the replayed rows to the gate.

        Here, because the worker then reads during the backward pass, which needs no interpreter
        lock; at any other place the two would hand it to and fro.
        """
        if self._observes and self._replay is not None and self.memory_rows is not None:
            logits = strategy.mb_output[self.memory_rows].detach()
            self.carousel.observe(self._replay, logits)

    def after_training_iteration(self, *_: Any, **__: Any) -> None:
        """Store the batch (``update="batch"``) and publish what the workers brought."""
        if self._update.after_step(self._rows):
            assert self._draw is not None
            self._draw.memory_changed()
        if self._observes:
            self.carousel.step()

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Wait for the experience's saves and let its samples compete for slots."""
        self._replay = self._draw = None
        self.memory_rows = None
        if self.update_rule == "experience" or not isinstance(
            strategy.experience, OnlineCLExperience
        ):
            self.carousel.end_experience()
        self._update.end()

    def before_eval(self, *_: Any, **__: Any) -> None:
        """No row of an evaluation comes from the memory."""
        self.memory_rows = None

    def state_dict(self) -> dict[str, Any]:
        """The memory and the place in the experience, for a checkpoint; plain types, tensors."""
        return {
            "carousel": self.carousel.state_dict(),
            "update": self._update.state_dict(),
            "draw": None if self._draw is None else self._draw.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; call it before training.

        Raises:
            CheckpointError: the state does not fit this memory and storage.
        """
        self.carousel.load_state_dict(state["carousel"])
        self._update.load_state_dict(state["update"])
        self._draw_state = state["draw"]

    def _loader_for(self, strategy: Any) -> StreamLoader | None:
        if self.fast_loader is False:
            return None
        source, transform = self._source, self._transform
        if not self._same_rows:
            source = raw_source(strategy.adapted_dataset)
            transform = batch_transform(source, self.transform)
        return stream_loader(strategy, source, transform, mode=self.fast_loader, seed=self.seed)

    def _check_output(self, output: Any) -> None:
        self._checked_output = True
        logits = isinstance(output, Tensor) and output.ndim == 2
        if logits and self._top_label >= output.shape[1]:
            raise BadInputError(
                f"the experience has label {self._top_label} and the model {output.shape[1]} "
                "outputs",
                fix="give the model one output a class",
            )
        if self._observes and not logits:
            what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise BadInputError(
                f"the model gives {what}, which no gate can judge",
                fix="let it give logits (n, classes), or use swap=False",
            )


def _check_rules(batch_size_mem: int | None, update: str, replay: str) -> None:
    if batch_size_mem is not None and batch_size_mem < 1:
        raise BadInputError(f"batch_size_mem is {batch_size_mem}", fix="give at least 1, or None")
    if update not in ("experience", "batch"):
        raise BadInputError(f"update is {update!r}", fix='use "experience" or "batch"')
    if replay not in ("concat", "mixed"):
        raise BadInputError(f"replay is {replay!r}", fix='use "concat" or "mixed"')
    if replay == "mixed" and update == "batch":
        raise BadInputError(
            'replay="mixed" passes over a memory that stays the same for an epoch',
            fix='use replay="concat" with update="batch"',
        )


def _check_samples(source: RawSource) -> int:
    """The largest label; raises BadInputError for labels or samples that cannot be used."""
    if int(source.labels.min()) < 0:
        raise BadInputError(
            f"the experience has label {int(source.labels.min())}", fix="number classes from 0"
        )
    if source.tensor_backed and source.rows(torch.tensor([0])).is_floating_point():
        for rows, x in source.batches(_CHECK_ROWS):
            bad = ~x.isfinite().flatten(1).all(1)
            if bad.any():
                row = int(rows[bad][0])
                raise BadInputError(
                    f"sample {row} of the experience holds NaN or infinity",
                    fix="clean or drop such samples",
                )
    return int(source.labels.max())


def _place_of(strategy: Any, run: str) -> tuple[str, int]:
    """The run and number under which the ids of an experience are remembered.

    A stream made of the parts of one experience counts from 0, as the next such stream does, so
    the number of the whole experience is part of the name.
    """
    experience = strategy.experience
    if isinstance(experience, CLExperience):
        experience = experience.logging()  # nothing is masked
    number = _number_of(experience)
    if number is None:
        return run, int(strategy.clock.train_exp_counter)
    whole = _number_of(getattr(experience, "origin_experience", None))
    return (run if whole is None else f"{run}/{whole}"), number


def _number_of(experience: Any) -> int | None:
    try:
        return int(experience.current_experience)
    except (AttributeError, TypeError, AssertionError):
        return None


def _take_row_numbers(strategy: Any) -> Tensor:
    """Rows of the experience in the mini-batch; removes the field that tells them."""
    if isinstance(strategy.dataloader, StreamLoader):
        return strategy.dataloader.rows
    rows: Tensor = strategy.mbatch.pop()
    return rows.cpu()
