"""Strategies by name, for the command line; listing them imports neither torch nor Avalanche."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from carousel.errors import BadInputError
from carousel.spelling import nearest
from carousel.strategies.options import check_option

if TYPE_CHECKING:
    from carousel.strategies.plugin import CarMPlugin

__all__ = [
    "Common",
    "StrategyInfo",
    "list_strategies",
    "make_strategy",
    "register_strategy",
    "strategy_info",
]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every strategy is made from, whether it uses all of it or not.

    Args:
        model: the module to train.
        optimizer: over its parameters.
        storage: see `CarMPlugin`; needed by strategies with a memory.
        memory_size: see `CarMPlugin`, as for the fields down to `run`; None for a gate leaves it
            to the method.
        train_mb_size: samples of the stream a step.
        train_epochs: passes over an experience.
        eval_mb_size: samples a step of the evaluation; by default `train_mb_size`.
        device: where the model is trained.
        plugins: further Avalanche plugins, called after the memory.
        evaluator: of Avalanche; none by default.
        eval_every: see Avalanche.
    """

    model: Any
    optimizer: Any
    storage: Any = None
    memory_size: int | str = 500
    swap_ratio: float = 0.5
    gate: Any = None
    swap: bool = True
    durability: Any = "bounded"
    storage_budget: int | str | None = None
    sync: bool = False
    seed: int = 0
    transform: Any = None
    fast_loader: Any = "auto"
    run: str = "run"
    train_mb_size: int = 32
    train_epochs: int = 1
    eval_mb_size: int | None = None
    device: Any = "cpu"
    plugins: Sequence[Any] = ()
    evaluator: Any = None
    eval_every: int = -1


Builder = Callable[..., Any]


@dataclass(frozen=True)
class StrategyInfo:
    """A registered strategy.

    Attributes:
        name: as on the command line.
        summary: one line.
        options: its own options and their defaults.
        has_memory: whether it keeps samples (and so needs a storage).
    """

    name: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    has_memory: bool = True


_INFOS: dict[str, StrategyInfo] = {}
_BUILDERS: dict[str, Builder] = {}


def register_strategy(
    name: str, summary: str, *, has_memory: bool = True, **options: Any
) -> Callable[[Builder], Builder]:
    """Register ``builder(common, **options) -> strategy`` under a name.

    Args:
        name: as on the command line.
        summary: one line for lists.
        has_memory: whether the strategy keeps samples.
        options: the strategy's own options and their defaults.

    Example:
        >>> @register_strategy("nothing", "Does not train", has_memory=False, patience=3)
        ... def _nothing(common, patience):
        ...     return None
        >>> strategy_info("nothing").options
        {'patience': 3}
        >>> del _INFOS["nothing"], _BUILDERS["nothing"]
    """

    def register(builder: Builder) -> Builder:
        _INFOS[name] = StrategyInfo(name, summary, options, has_memory)
        _BUILDERS[name] = builder
        return builder

    return register


def list_strategies() -> list[str]:
    """The names of all strategies, sorted.

    Example:
        >>> {"er", "joint", "naive"} <= set(list_strategies())
        True
    """
    return sorted(_INFOS)


def strategy_info(name: str) -> StrategyInfo:
    """Summary and options of a strategy.

    Raises:
        BadInputError: there is none of this name; suggests the nearest.
    """
    return _find("strategy", name, _INFOS)


def make_strategy(name: str, options: Mapping[str, Any] | None = None, **common: Any) -> Any:
    """Build a strategy, ready for ``strategy.train(experience)``.

    Args:
        name: one of `list_strategies`.
        options: the strategy's own options, see `strategy_info`; the rest are defaults.
        common: the fields of `Common`.

    Returns:
        An Avalanche `SupervisedTemplate` with an attribute ``memory``, its `CarMPlugin` or None;
        close that when done.

    Raises:
        BadInputError: an unknown strategy, option or field (with the nearest name), or a value
            that the strategy refuses.
    """
    info = strategy_info(name)
    given = dict(options or {})
    for key, value in given.items():
        check_option(key, value, _find(f"option of {name}", key, info.options))
    for key in common:
        _find("argument", key, Common.__dataclass_fields__)
    return _BUILDERS[name](Common(**common), **{**info.options, **given})


@register_strategy(
    "er",
    "Experience replay: a memory of past samples beside the stream",
    loss="ce",
    replay="concat",
    admission="class-balanced",
    update="experience",
    batch_size_mem=None,
)
def _make_er(common: Common, loss: Any, **options: Any) -> Any:
    from carousel.strategies.er import ER

    return _with_memory(ER, common, {"loss": loss}, **options)


@register_strategy(
    "naive", "Lower bound: trains on each experience alone", has_memory=False, loss="ce"
)
def _make_naive(common: Common, loss: Any) -> Any:
    from carousel.strategies.bounds import Naive

    return _without_memory(Naive, common, loss)


@register_strategy(
    "joint", "Upper bound: trains on all samples met so far", has_memory=False, loss="ce"
)
def _make_joint(common: Common, loss: Any) -> Any:
    from carousel.strategies.bounds import Joint

    return _without_memory(Joint, common, loss)


@register_strategy(
    "tiny-er",
    "TinyER: online replay from a very small memory, task aware if asked",
    task_aware=False,
    admission="reservoir",
    batch_size_mem=10,
)
def _make_tiny_er(common: Common, task_aware: Any, **options: Any) -> Any:
    from carousel.strategies.tiny_er import TinyER

    return _with_memory(TinyER, common, {"task_aware": task_aware}, **options)


@register_strategy(
    "der++",
    "DER++: replay samples together with the logits they once had",
    alpha=0.2,
    beta=0.5,
    logits="first",
    refresh_per_class=256,
    n_classes=None,
    distill_weight="original",
    admission="reservoir",
    batch_size_mem=None,
)
def _make_der(common: Common, admission: Any, batch_size_mem: Any, **options: Any) -> Any:
    from carousel.strategies.der import DERPlusPlus

    return _with_memory(
        DERPlusPlus, common, options, admission=admission, batch_size_mem=batch_size_mem
    )


@register_strategy(
    "bic",
    "BiC: distillation, then a correction of the bias towards new classes",
    temperature=2.0,
    distill_weight="original",
    validation=0.1,
    bias_epochs=None,
    bias_lr=0.1,
    bias_optimizer="sgd",
    bias_l2=0.1,
    admission="class-balanced",
    replay="mixed",
    batch_size_mem=None,
)
def _make_bic(
    common: Common, admission: Any, replay: Any, batch_size_mem: Any, **options: Any
) -> Any:
    from carousel.strategies.bic import BiC

    return _with_memory(
        BiC, common, options, admission=admission, replay=replay, batch_size_mem=batch_size_mem
    )


@register_strategy(
    "gdumb",
    "GDumb: a balanced memory, and a model trained from scratch on it alone",
    cutmix_p=0.5,
    cutmix_alpha=1.0,
    clip=10.0,
    schedule="restarts",
    gate_on_mixed="skip",
    admission="greedy",
)
def _make_gdumb(common: Common, admission: Any, **options: Any) -> Any:
    from carousel.strategies.gdumb import GDumb

    return _with_memory(GDumb, common, options, admission=admission)


@register_strategy(
    "icarl",
    "iCaRL: exemplars by herding, distillation, prediction by the nearest class mean",
    distill_weight="original",
    exemplars="rerank",
    means="memory",
    stored_per_class=100,
    mirror=False,
    features=None,
    replay="mixed",
    batch_size_mem=None,
)
def _make_icarl(common: Common, replay: Any, batch_size_mem: Any, **options: Any) -> Any:
    from carousel.strategies.icarl import ICaRL

    return _with_memory(ICaRL, common, options, replay=replay, batch_size_mem=batch_size_mem)


@register_strategy(
    "rm",
    "Rainbow Memory: sure and unsure samples alike, then training on them alone",
    copies=12,
    perturb=None,
    cutmix_p=0.5,
    cutmix_alpha=1.0,
    clip=None,
    schedule="restarts",
    gate_on_mixed="skip",
    augment=None,
    batch_size_mem=None,
)
def _make_rainbow(common: Common, batch_size_mem: Any, **options: Any) -> Any:
    from carousel.strategies.rainbow import RainbowMemory

    return _with_memory(RainbowMemory, common, options, batch_size_mem=batch_size_mem)


def make_memory(common: Common, **options: Any) -> CarMPlugin:
    """The memory that the common fields ask for; `options` are further ones of `CarMPlugin`.

    Raises:
        BadInputError: no storage is given, or `CarMPlugin` refuses a value.
    """
    from carousel.strategies.plugin import CarMPlugin

    if common.storage is None:
        raise BadInputError("storage is None", fix="give the directory that keeps the samples")
    return CarMPlugin(
        common.memory_size,
        common.storage,
        swap_ratio=common.swap_ratio,
        gate=common.gate,
        swap=common.swap,
        durability=common.durability,
        storage_budget=common.storage_budget,
        sync=common.sync,
        seed=common.seed,
        transform=common.transform,
        fast_loader=common.fast_loader,
        run=common.run,
        **options,
    )


def _with_memory(
    kind: Callable[..., Any], common: Common, own: Mapping[str, Any], **of_memory: Any
) -> Any:
    """A strategy with its own options, on a memory that is closed again if it refuses them."""
    memory = make_memory(common, **of_memory)
    try:
        return kind(memory=memory, **own, **_training(common), plugins=common.plugins)
    except BaseException:
        memory.close()
        raise


def _without_memory(kind: Callable[..., Any], common: Common, loss: Any) -> Any:
    from carousel.strategies.fast import FastLoader
    from carousel.strategies.loss import make_loss

    loader = FastLoader(
        fast_loader=common.fast_loader, seed=common.seed, transform=common.transform
    )
    return kind(criterion=make_loss(loss), **_training(common), plugins=[loader, *common.plugins])


def _training(common: Common) -> dict[str, Any]:
    names = ("model", "optimizer", "train_mb_size", "train_epochs", "eval_mb_size", "device")
    return {name: getattr(common, name) for name in (*names, "evaluator", "eval_every")}


def _find(kind: str, name: str, choices: Mapping[str, T]) -> T:
    """`carousel.memory.names.lookup` without importing torch."""
    if name in choices:
        return choices[name]
    near = nearest(str(name), choices)
    known = ", ".join(sorted(choices)) or "none"
    fix = f"did you mean {near}?" if near else f"there are: {known}"
    raise BadInputError(f"unknown {kind} {name!r}", fix=fix)
