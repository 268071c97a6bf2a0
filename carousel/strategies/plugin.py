"""`CarMPlugin`: replay from a carousel for any SGD strategy of Avalanche.

After "CarM: Hierarchical Episodic Memory for Continual Learning" (Lee et al., DAC 2022): all past
samples are kept in storage, a few of them in RAM, and what was replayed and is easy for the model
is exchanged in the background, while training goes on, for another stored sample of its class.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from avalanche.benchmarks import OnlineCLExperience
from avalanche.benchmarks.utils import DataAttribute
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory import Carousel
from carousel.memory.admission import Admission
from carousel.memory.gate import Gate, parse_ratio
from carousel.memory.replay import Replay
from carousel.memory.seeds import fresh_seed, generator
from carousel.storage.tier import Durability, StorageTier
from carousel.strategies.batch import (
    BatchTransform,
    append_labels,
    append_samples,
    batch_transform,
    joined,
)
from carousel.strategies.checks import check_output, check_samples, check_schema
from carousel.strategies.draw import ReplayRule
from carousel.strategies.draws import Draws, Part, make_draws
from carousel.strategies.fast import FastMode, check_fast_mode, same_rows, stream_loader
from carousel.strategies.loader import StreamLoader, take_rows
from carousel.strategies.memory_loader import MemoryLoader
from carousel.strategies.owner import Owner
from carousel.strategies.place import place_of
from carousel.strategies.raw import RawSource, raw_source
from carousel.strategies.rules import Rules, settle
from carousel.strategies.update import UpdateRule, make_update

__all__ = ["CarMPlugin", "HoldOut"]

Ints = npt.NDArray[np.int64]
HoldOut = Callable[[RawSource, int], Tensor]
"""Takes the samples of an experience and its number, gives the (k,) rows to leave out."""

_ROW = "carousel_row"
"""Data attribute that says which sample of the experience a row of a mini-batch is."""


class CarMPlugin(SupervisedPlugin):
    """Replay from a hierarchical memory: added to `Naive` it is experience replay.

    Rows of the memory are appended to ``strategy.mbatch`` in the training process; the loader,
    the model and the optimizer stay the user's. Samples are stored raw, before augmentation, and
    transformed when they are replayed.

    A method that is given the plugin decides the rules that the user left open (`suit`): what is
    said of ``gate``, ``batch_size_mem``, ``admission``, ``update`` and ``replay`` below holds for
    the plugin alone, and for `ER`.

    Args:
        memory_size: slots in RAM: a number of samples, or bytes such as ``"64MiB"``.
        storage: directory of the LMDB environment that keeps all samples, or any `StorageTier`.
        swap_ratio: share of the replayed rows of a step that leave the memory, 0..1.
        gate: which of them; a name of `carousel.memory.gate` or a callable; ``"balanced"``.
        batch_size_mem: rows to replay a step; by default the strategy's training batch size.
        admission: who gets a slot: ``"class-balanced"`` (usual), ``"reservoir"``, ``"ring"``,
            ``"greedy"``.
        durability: what saved samples survive; see `carousel.storage.Durability`.
        storage_budget: limit of the storage, such as ``"1GiB"`` or a number of samples.
        sync: swap within the step: slower, and repeatable bit for bit.
        seed: of every random choice of the memory.
        update: ``"experience"`` (usual): the memory changes at the end of an experience;
            ``"batch"``: after every step, for online streams; or what makes an `Update`.
        replay: ``"concat"`` (usual): rows are drawn anew each step. ``"mixed"``, the paper's ER:
            stream and memory are shuffled together and an epoch passes once over both; when the
            loader is not ours the memory is dealt evenly to the stream's batches instead.
            ``"memory"``: an epoch passes once over the memory, and not over the stream.
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
        rules: how it is filled, replayed and judged.
        swaps: whether replayed samples may leave for others: False with ``swap=False`` or ratio 0.
        memory_rows: where the replayed rows are in the current mini-batch, None if there are none.
        stream_rows: rows of the current mini-batch that come from the stream.
        parts: each replayed batch of the current mini-batch, and where its rows are.
        logits_to_judge: (replayed rows, C) for the gate in place of the model's output; a method
            sets it for one step, before the backward pass.
        skip_gate: a method sets it for a step whose logits say nothing about the samples.
        hold_out: leaves samples of an experience out of training, memory and storage.
        source: samples of the experience, without those held out.
        whole_source: all samples of the experience.
        first_id: id of the first of them.

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
        gate: str | Gate | None = None,
        batch_size_mem: int | None = None,
        admission: str | Admission | None = None,
        durability: Durability = "bounded",
        storage_budget: int | str | None = None,
        sync: bool = False,
        seed: int | None = None,
        update: UpdateRule | None = None,
        replay: ReplayRule | None = None,
        transform: BatchTransform | None = None,
        fast_loader: FastMode = "auto",
        swap: bool = True,
        run: str = "run",
    ) -> None:
        super().__init__()
        self._chosen = Rules(
            update=update,
            replay=replay,
            admission=admission,
            gate=gate,
            batch_size_mem=batch_size_mem,
        )
        self.rules = rules = settle(self._chosen)
        self.swaps = swap and parse_ratio(swap_ratio) > 0
        self.fast_loader = check_fast_mode(fast_loader)
        self.seed = fresh_seed() if seed is None else seed
        self.transform = transform
        self.run = run
        self.carousel = Carousel(
            memory_size,
            storage,
            swap_ratio=swap_ratio,
            gate=rules.gate or "balanced",
            admission=rules.admission or "class-balanced",
            durability=durability,
            storage_budget=storage_budget,
            sync=sync,
            seed=self.seed,
            swap=swap,
        )
        self.hold_out: HoldOut | None = None
        self._owner = Owner()
        self._update = make_update(rules.update, self.carousel)
        self._loader: StreamLoader | None = None
        self._draws = Draws()
        self._draw_states: list[dict[str, Any]] | None = None
        self._rows: Tensor | None = None
        self.parts: list[Part] = []
        self.memory_rows: slice | None = None
        self.stream_rows = 0
        self.logits_to_judge: Tensor | None = None
        self.skip_gate = False
        self._close = weakref.finalize(self, self.carousel.close)

    def suit(self, wanted: Rules, *, method: str = "", strategy: Any = None) -> None:
        """Let a method decide the rules that the user left open; its constructor calls this.

        Args:
            wanted: the method's rules.
            method: named in errors.
            strategy: the only one that may train with the memory from now on; None for any.

        Raises:
            BadInputError: the user chose a rule with which the method cannot work.
        """
        rules, before = settle(self._chosen, wanted, method=method), self.rules
        if (rules.admission, rules.gate) != (before.admission, before.gate):
            self.carousel.use(admission=rules.admission, gate=rules.gate)
        self.rules, self.hold_out = rules, None
        self._update = make_update(rules.update, self.carousel)
        if strategy is not None:
            self._owner.claim(strategy, method)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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

    def ids_of(self, rows: Tensor) -> Ints:
        """(k,) ids of (k,) rows of `source`."""
        ids: Ints = self._ids[rows.numpy()]
        return ids

    def transform_batch(self, x: Tensor) -> Tensor:
        """Model input (n, *shape) for raw samples (n, *shape), on their device."""
        return x if self._transform is None else self._transform(x)

    def before_training(self, *_: Any, **__: Any) -> None:
        """Drop what is left of an experience that broke off: no checkpoint may go on with it."""
        self._draws = Draws()

    def before_train_dataset_adaptation(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Check the samples of the experience before anything changes."""
        self._owner.check(strategy)
        whole = raw_source(strategy.experience.dataset)
        self._top_label = check_samples(whole)
        if self.carousel.schema is not None:
            check_schema(self.carousel.schema, whole, self._update.fields)
        self._place = place_of(strategy, self.run)
        self._kept = torch.arange(len(whole))
        if self.hold_out is not None:
            kept = torch.ones(len(whole), dtype=torch.bool)
            kept[self.hold_out(whole, self._place[1])] = False
            self._kept = self._kept[kept]
        self.whole_source = whole
        self.source = whole if self.hold_out is None else whole.subset(self._kept)
        self._transform = batch_transform(self.source, self.transform)

    def after_train_dataset_adaptation(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Leave out what is held out; let mini-batches tell their rows, when each is stored."""
        self._same_rows = same_rows(strategy.adapted_dataset, strategy.experience.dataset)
        if not self._same_rows and (self._update.by_batch or self.hold_out is not None):
            raise BadInputError(
                "the strategy trains on other samples than those of the experience",
                fix='use update="experience" with it, and a method that holds no samples out',
            )
        if self.hold_out is not None:
            strategy.adapted_dataset = strategy.adapted_dataset.subset(self._kept.tolist())
        if self._update.by_batch:
            numbers = DataAttribute(range(len(self.source)), _ROW, use_in_getitem=True)
            strategy.adapted_dataset = strategy.adapted_dataset.update_data_attribute(_ROW, numbers)

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Start saving the experience; take over the loader if that is possible."""
        self.first_id = self.carousel.reserve(*self._place, len(self.whole_source))
        self._ids = self.first_id + self._kept.numpy()
        self._update.begin(self.source, self._ids)
        self._checked_output = False
        assert self.rules.replay is not None
        if self.rules.replay == "memory":
            self.train_on_memory(strategy)
            return
        self._loader = self._loader_for(strategy)
        if self._loader is not None:
            strategy.dataloader = self._loader
        size = self.rules.batch_size_mem or strategy.train_mb_size
        name = f"replay {strategy.clock.train_exp_counter}"
        names = [name, *(f"{name} {number}" for number in range(1, self.rules.draws))]
        rngs = [generator(self.seed, own) for own in names]
        self._draws = make_draws(self.rules.replay, self.carousel, size, rngs)

    def train_on_memory(self, strategy: Any) -> None:
        """Let the epochs that follow pass over the memory alone; call it between two epochs."""
        name = f"memory {strategy.clock.train_exp_counter}"
        strategy.dataloader = MemoryLoader(strategy.train_mb_size, seed=self.seed, name=name)
        self._loader = None
        self._draws = make_draws("memory", self.carousel, 0, [generator(self.seed, name)])

    def before_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Deal the memory out for the epoch."""
        self._draws.start_epoch(strategy.dataloader)
        if self._draw_states is not None:
            self._draws.load_state_dict(self._draw_states)
            self._draw_states = None

    def before_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Append replayed rows to the mini-batch."""
        self._forget_step()
        if self._update.by_batch:
            self._rows = take_rows(strategy)
        mbatch = strategy.mbatch
        self.stream_rows = len(mbatch[0]) if mbatch else 0
        joint = self._joint(mbatch)
        self.parts = self._draws.next(self.stream_rows, None if joint is None else joint[1])
        if not self.parts:
            return
        self.memory_rows = slice(self.stream_rows, self.parts[-1][1].stop)
        replays = [replay for replay, _ in self.parts]
        if joint is not None and self.memory_rows.stop == len(joint[0]):
            mbatch[0] = joint[0]
        else:
            raw = joined([replay.x for replay in replays])
            x = self.transform_batch(raw.to(strategy.device, non_blocking=True))
            append_samples(mbatch, x)
        labels = joined([replay.labels for replay in replays])
        tasks = joined([replay.tasks for replay in replays])
        append_labels(mbatch, labels, tasks, with_tasks=self.source.carries_tasks)

    def after_forward(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Refuse labels that the model has no output for, before the loss does."""
        if not self._checked_output:
            self._checked_output = True
            check_output(strategy.mb_output, self._top_label, judged=self.swaps)

    def before_backward(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Hand the logits of the replayed rows to the gate.

        Here, because the worker then reads during the backward pass, which needs no interpreter
        lock; at any other place the two would hand it to and fro.
        """
        if not self.swaps or self.skip_gate or not self.parts:
            return
        logits = self.logits_to_judge
        if logits is None:
            logits = strategy.mb_output[self.memory_rows]
        replay = self.parts[0][0]
        if len(self.parts) > 1:
            replay, rows = Replay.joined([drawn for drawn, _ in self.parts])
            logits = logits[torch.from_numpy(rows).to(logits.device)]
        self.carousel.observe(replay, logits.detach())

    def after_training_iteration(self, *_: Any, **__: Any) -> None:
        """Store the batch (``update="batch"``) and publish what the workers brought."""
        if self._update.after_step(self._rows):
            self._draws.memory_changed()
        if self.swaps:
            self.carousel.step()

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Wait for the experience's saves and let its samples compete for slots."""
        self._draws = Draws()
        self._forget_step()
        if not (self._update.by_batch and isinstance(strategy.experience, OnlineCLExperience)):
            self.carousel.end_experience()
        self._update.end()

    def before_eval(self, *_: Any, **__: Any) -> None:
        """No row of an evaluation comes from the memory."""
        self._forget_step()

    def state_dict(self) -> dict[str, Any]:
        """The memory and the place in the experience, for a checkpoint; plain types, tensors."""
        return {
            "carousel": self.carousel.state_dict(),
            "update": self._update.state_dict(),
            "draws": self._draws.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; call it before training.

        Raises:
            CheckpointError: the state does not fit this memory and storage.
        """
        self.carousel.load_state_dict(state["carousel"])
        self._update.load_state_dict(state["update"])
        self._draw_states = state["draws"] or None

    def _loader_for(self, strategy: Any) -> StreamLoader | None:
        if self.fast_loader is False:
            return None
        source, transform = self.source, self._transform
        if not self._same_rows:
            source = raw_source(strategy.adapted_dataset)
            transform = batch_transform(source, self.transform)
        return stream_loader(strategy, source, transform, mode=self.fast_loader, seed=self.seed)

    def _forget_step(self) -> None:
        self.parts = []
        self.memory_rows = self.logits_to_judge = None
        self.skip_gate = False
        self.stream_rows = 0

    def _joint(self, mbatch: list[Tensor]) -> tuple[Tensor, Tensor] | None:
        """The mini-batch with room behind it and that room, if the memory may gather there."""
        if self._loader is None or self._update.fields:
            return None
        return self._loader.batch_and_tail(mbatch[0])
