"""When Avalanche's own loader may be replaced by a `StreamLoader`, and the plugin that does it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from avalanche.benchmarks.utils.data_loader import TaskBalancedDataLoader
from avalanche.training.plugins import SupervisedPlugin
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate

from carousel.errors import BadInputError
from carousel.strategies.batch import BatchTransform, PerSample, batch_transform
from carousel.strategies.loader import StreamLoader
from carousel.strategies.raw import RawSource, raw_source

__all__ = ["FastLoader", "FastMode", "check_fast_mode", "same_rows", "stream_loader"]

FastMode: TypeAlias = Literal["auto"] | bool


class FastLoader(SupervisedPlugin):
    """Batch-level loading for a strategy without a memory; `CarMPlugin` does this by itself.

    Args:
        fast_loader: see `CarMPlugin`.
        seed: of the permutations.
        transform: from raw samples to model input, a batch at a time, in place of the
            experience's transforms.
    """

    def __init__(
        self,
        *,
        fast_loader: FastMode = "auto",
        seed: int = 0,
        transform: BatchTransform | None = None,
    ) -> None:
        super().__init__()
        self.fast_loader = check_fast_mode(fast_loader)
        self.seed = seed
        self.transform = transform

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Replace the loader of the experience if it may be."""
        if self.fast_loader is False:
            return
        source = raw_source(strategy.adapted_dataset)
        transform = batch_transform(source, self.transform)
        loader = stream_loader(strategy, source, transform, mode=self.fast_loader, seed=self.seed)
        if loader is not None:
            strategy.dataloader = loader


def check_fast_mode(mode: FastMode) -> FastMode:
    """The mode itself.

    Raises:
        BadInputError: it is not "auto", True or False.
    """
    if mode not in ("auto", True, False):
        raise BadInputError(f"fast_loader is {mode!r}", fix='use "auto", True or False')
    return mode


def stream_loader(
    strategy: Any,
    source: RawSource,
    transform: BatchTransform | None,
    *,
    mode: FastMode,
    seed: int,
) -> StreamLoader | None:
    """A loader that gives what the strategy's own gives, or None when that is not certain.

    Args:
        strategy: an Avalanche strategy in `before_training_exp`.
        source: of the strategy's adapted data set.
        transform: see `batch_transform`.
        mode: False for never, True to raise where "auto" gives None.
        seed: of the permutations.

    Raises:
        BadInputError: `mode` is True and the loader cannot be replaced.
    """
    if mode is False:
        return None
    loader = strategy.dataloader
    obstacle = _obstacle(source, transform) or _touched(strategy, loader)
    if obstacle:
        if mode == "auto":
            return None
        raise BadInputError(f"fast_loader is True but {obstacle}", fix='use fast_loader="auto"')
    shuffle, drop_last = _order_of(loader)
    return StreamLoader(
        source,
        strategy.train_mb_size,
        seed=seed,
        name=f"loader {strategy.clock.train_exp_counter}",
        shuffle=shuffle,
        drop_last=drop_last,
        transform=transform,
    )


def same_rows(a: Any, b: Any) -> bool:
    """Whether two Avalanche data sets hold the same rows, up to the group of transforms."""
    left, right = getattr(a, "_flat_data", None), getattr(b, "_flat_data", None)
    if left is None or right is None:
        return a is b
    return left._datasets is right._datasets and left._indices is right._indices


def _obstacle(source: RawSource, transform: BatchTransform | None) -> str:
    if not source.tensor_backed:
        return "the samples are no plain tensors in RAM"
    if isinstance(transform, PerSample):
        return "the experience transforms samples one by one (give transform=)"
    return ""


def _touched(strategy: Any, loader: Any) -> str:
    """How the loader differs from what `make_train_dataloader` of Avalanche makes, or ""."""
    if type(loader) is TaskBalancedDataLoader:
        untouched = (
            [len(data) for data in loader.datasets] == [len(strategy.adapted_dataset)]
            and loader.batch_sizes == [strategy.train_mb_size]
            and not loader.distributed_sampling
            and loader.loader_kwargs["collate_fn"] is default_collate
            and not loader.loader_kwargs.keys() & {"sampler", "batch_sampler", "generator"}
        )
        workers = loader.loader_kwargs.get("num_workers", 0)
    elif type(loader) is DataLoader:
        untouched = (
            loader.dataset is strategy.adapted_dataset
            and loader.batch_size == strategy.train_mb_size
            and loader.collate_fn is default_collate
            and type(loader.batch_sampler) is BatchSampler
            and _is_plain(loader.sampler)
        )
        workers = loader.num_workers
    else:
        return f"the loader is a {type(loader).__name__}"
    if workers:
        return f"the loader has {workers} workers"
    return "" if untouched else "the loader is not the one that Avalanche makes"


def _is_plain(sampler: Any) -> bool:
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler._num_samples is None and not sampler.generator
    return type(sampler) is SequentialSampler


def _order_of(loader: Any) -> tuple[bool, bool]:
    if type(loader) is DataLoader:
        return type(loader.sampler) is RandomSampler, loader.drop_last
    options = loader.loader_kwargs
    return bool(options.get("shuffle", False)), bool(options.get("drop_last", False))
