"""Gates: which replayed rows of a batch may leave the memory.

The paper's score function (CarM, DAC 2022, slides 27 to 29): a correct row scores H / 2u, a wrong
one (2u - H) / 2u, with H the entropy of the softmax and u = ln C the largest entropy. The easiest,
that is lowest, scores leave. Only ranks count, so u never appears below: correct rows come first,
by ascending entropy, then wrong rows by descending entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory.names import lookup

__all__ = ["GATES", "Gate", "GateBatch", "make_gate", "parse_ratio", "rows_to_swap"]


@dataclass(slots=True)
class GateBatch:
    """What a gate may look at: the replayed rows of one training batch, after the forward pass.

    Args:
        logits: (n, C) float, detached, on any device; minus infinity for a masked class is fine.
        labels: (n,) integers from 0 to C - 1, on any device.
        ratio: the share of the rows that shall leave, exact; see `parse_ratio`.
        rng: the gate's own random numbers.
        losses: (n,) float, detached, or None when the strategy has no loss per row.
    """

    logits: Tensor
    labels: Tensor
    ratio: Fraction
    rng: np.random.Generator
    losses: Tensor | None = None

    def __len__(self) -> int:
        return self.labels.shape[0]  # len of a tensor is a function in Python, and this a hot path

    @property
    def quota(self) -> int:
        """How many rows leave: ceil(ratio * n) in exact arithmetic."""
        return rows_to_swap(self.ratio, len(self))


_WIDE = 2**62
"""Products up to here are exact in int64; beyond it Python's integers are used."""

Gate: TypeAlias = Callable[[GateBatch], npt.NDArray[np.int64]]
"""Takes a `GateBatch`, returns the rows that leave as distinct indices (k,) int64."""


def make_gate(gate: str | Gate, ratio: Fraction | None = None) -> Gate:
    """A gate by name, or any callable, whose answer is then checked at every call.

    Args:
        gate: ``"balanced"``, ``"score"``, ``"entropy"``, ``"loss"``, ``"random"``, ``"all"`` or
            a callable as `Gate`; a callable may also answer with a boolean mask (n,).
        ratio: when given, a pair that cannot work (``"all"`` with a ratio other than 1) is
            refused here and not at the first batch.

    Raises:
        BadInputError: no gate has this name; the nearest one is suggested.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> batch = GateBatch(torch.eye(4), torch.arange(4), Fraction(1, 2), rng)
        >>> len(make_gate("balanced")(batch))
        2
    """
    if callable(gate):
        return gate if gate in GATES.values() else _checked(gate)
    found = lookup("gate", gate, GATES)
    if found is swap_all and ratio is not None:
        _require_one(ratio)
    return found


def parse_ratio(value: float | str | Fraction) -> Fraction:
    """A swap ratio as the exact number that was written: 0.55 is 11/20, not its nearest binary.

    Raises:
        BadInputError: it is no number from 0 to 1.

    Example:
        >>> parse_ratio(0.55)
        Fraction(11, 20)
    """
    try:
        ratio = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        ratio = Fraction(-1)
    if not 0 <= ratio <= 1:
        raise BadInputError(f"swap_ratio is {value}", fix="give a number from 0 to 1")
    return ratio


def rows_to_swap(ratio: Fraction, rows: int) -> int:
    """ceil(ratio * rows), exactly.

    Example:
        >>> rows_to_swap(Fraction("0.55"), 100)
        55
    """
    return -(-ratio.numerator * rows // ratio.denominator)


def balanced(batch: GateBatch) -> npt.NDArray[np.int64]:
    """The paper's final rule (`hybrid_balanced_p` of the official code): easiest first, per class.

    Of T = ceil(p n) rows, a class with n_c rows gives floor(p n_c); what is missing to T is taken
    one each from distinct classes drawn uniformly among those whose p n_c is no whole number.
    Ties are broken by a seeded shuffle. The indices ascend.
    """
    if batch.ratio in (0, 1):
        return _extreme(batch)
    labels, wrong, entropy = _judge(batch)
    rows, classes = batch.logits.shape
    noise = batch.rng.random(2 * rows)
    order = np.lexsort((noise[:rows], np.where(wrong, -entropy, entropy), wrong, labels))
    sizes = np.bincount(labels, minlength=classes)
    ends = sizes.cumsum() - sizes + _shares(batch, sizes, noise[rows:])
    picked = order[np.arange(rows) < ends[labels[order]]]
    picked.sort()
    return picked


def score(batch: GateBatch) -> npt.NDArray[np.int64]:
    """The paper's first rule, and TinyER's (`hybrid_ratio`): easiest first over the whole batch."""
    if batch.ratio in (0, 1):
        return _extreme(batch)
    _, wrong, entropy = _judge(batch)
    return _lowest(batch, np.where(wrong, -entropy, entropy), wrong)


def by_entropy(batch: GateBatch) -> npt.NDArray[np.int64]:
    """The most certain rows leave, right or wrong."""
    if batch.ratio in (0, 1):
        return _extreme(batch)
    return _lowest(batch, _to_cpu(_entropy(_plain(batch.logits))))


def by_loss(batch: GateBatch) -> npt.NDArray[np.int64]:
    """The rows with the smallest loss leave; cross-entropy where the strategy gave no losses."""
    if batch.ratio in (0, 1):
        return _extreme(batch)
    losses = batch.losses
    if losses is None:
        labels = batch.labels.to(batch.logits.device, torch.int64)
        losses = torch.nn.functional.cross_entropy(batch.logits.float(), labels, reduction="none")
    return _lowest(batch, _to_cpu(_plain(losses)))


def at_random(batch: GateBatch) -> npt.NDArray[np.int64]:
    """Any rows leave: uniform, without replacement."""
    return np.sort(batch.rng.permutation(len(batch))[: batch.quota])


def swap_all(batch: GateBatch) -> npt.NDArray[np.int64]:
    """Every row leaves (CarM-100).

    Raises:
        BadInputError: the ratio is not 1.
    """
    _require_one(batch.ratio)
    return np.arange(len(batch))


GATES: dict[str, Gate] = {
    "balanced": balanced,
    "score": score,
    "entropy": by_entropy,
    "loss": by_loss,
    "random": at_random,
    "all": swap_all,
}
"""The gates by name; `balanced` is the default everywhere."""


def _require_one(ratio: Fraction) -> None:
    if ratio != 1:
        raise BadInputError(
            f"gate 'all' with swap_ratio {float(ratio):g}",
            fix="give swap_ratio 1, or a gate that ranks, such as balanced",
        )


def _extreme(batch: GateBatch) -> npt.NDArray[np.int64]:
    return np.arange(len(batch) if batch.ratio == 1 else 0)


def _shares(
    batch: GateBatch, sizes: npt.NDArray[np.int64], noise: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """How many rows each class gives, from its number of rows in the batch."""
    numerator, denominator = batch.ratio.as_integer_ratio()
    wide = denominator > _WIDE // max(1, len(batch))  # such as 1/3 written in 16 digits
    wanted = (sizes.astype(object) if wide else sizes) * numerator
    quotient = wanted // denominator
    rest = wanted - quotient * denominator
    shares = quotient.astype(np.int64, copy=False)
    missing = -(-int(rest.sum()) // denominator)
    if missing:
        fractional = rest.nonzero()[0]
        lucky = noise[: len(fractional)].argsort()[:missing]
        shares[fractional[lucky]] += 1
    return shares


def _lowest(
    batch: GateBatch,
    values: npt.NDArray[np.floating],
    before: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.int64]:
    noise = batch.rng.random(len(values))
    keys = (noise, values) if before is None else (noise, values, before)
    picked = np.lexsort(keys)[: batch.quota]
    picked.sort()
    return picked


def _judge(
    batch: GateBatch,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.floating]]:
    """Labels, whether each row is predicted wrongly, and its entropy, after one transfer."""
    logits, labels = _plain(batch.logits), batch.labels
    entropy = _entropy(logits)
    if logits.device.type == "cpu":
        known = _to_cpu(labels).astype(np.int64, copy=False)
        return known, logits.numpy().argmax(axis=1) != known, entropy.numpy()
    # float64 holds every class label and float32 entropy exactly, so one tensor can carry all
    columns = [entropy.double(), logits.argmax(dim=1).double()]
    if labels.device == logits.device:
        columns.append(labels.double())
    values = torch.stack(columns).cpu().numpy()
    known = (values[2] if len(values) == 3 else _to_cpu(labels)).astype(np.int64, copy=False)
    return known, values[1].astype(np.int64) != known, values[0]


def _entropy(logits: Tensor) -> Tensor:
    """Entropy (n,) in nats of the softmax over all logits."""
    logp = torch.log_softmax(logits, dim=1)
    # a masked class, at minus infinity, has p = 0 and shall contribute 0, not 0 * inf
    logp.clamp_(min=-1e4)
    return logp.exp().mul_(logp).sum(dim=1).neg_()


def _plain(values: Tensor) -> Tensor:
    """Values without their graph, in a precision that both torch and numpy compute in."""
    half = values.dtype in (torch.float16, torch.bfloat16)
    return values.detach().float() if half else values.detach()


def _to_cpu(value: Tensor) -> npt.NDArray[np.floating]:
    array: npt.NDArray[np.floating] = value.cpu().numpy()
    return array


def _checked(gate: Gate) -> Gate:
    def call(batch: GateBatch) -> npt.NDArray[np.int64]:
        picked = np.asarray(gate(batch))
        if picked.dtype == np.bool_ and picked.shape == (len(batch),):
            return np.flatnonzero(picked)
        if picked.size == 0:
            return np.empty(0, np.int64)
        ok = (
            picked.ndim == 1 and picked.dtype.kind in "iu" and len(np.unique(picked)) == len(picked)
        )
        if not ok or picked.min() < 0 or picked.max() >= len(batch):
            raise BadInputError(
                f"the gate answered {picked!r:.80} for {len(batch)} rows",
                fix="return distinct row indices, or a boolean mask with one value a row",
            )
        return picked.astype(np.int64, copy=False)

    return call
