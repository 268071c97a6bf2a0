"""Exemplars of iCaRL: herded at the end of an experience, and the class means that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory import Carousel
from carousel.memory.admission.quota import water_fill
from carousel.memory.residency import Residency
from carousel.memory.seeds import generator, load_state, state_of
from carousel.strategies.herding import herd
from carousel.strategies.nearest_mean import NearestMean
from carousel.strategies.update import ByExperience

__all__ = ["ExemplarOptions", "Exemplars", "MeansRule", "TaskEndRule"]

Ints: TypeAlias = npt.NDArray[np.int64]
TaskEndRule: TypeAlias = Literal["rerank", "keep"]
MeansRule: TypeAlias = Literal["memory", "stored"]

_ROWS = 256
_UNRANKED = np.iinfo(np.int64).max


@dataclass(frozen=True)
class ExemplarOptions:
    """How exemplars are chosen, and from what class means are made.

    Args:
        exemplars: ``"rerank"``: old classes are herded anew over what is in memory and
            `stored_per_class` more samples of the class that are drawn from storage. ``"keep"``:
            they keep what is in their best-ranked slots.
        means: ``"memory"``: class means are those of the exemplars. ``"stored"``: those of
            `stored_per_class` samples of the class that are drawn from storage.
        stored_per_class: most samples of a class to draw from storage. Without swapping none is:
            the two rules above are then about what is in memory.
        mirror: exemplars count for a class mean with their mirror images as well.

    Raises:
        BadInputError: one of them is none of its choices.
    """

    exemplars: TaskEndRule = "rerank"
    means: MeansRule = "memory"
    stored_per_class: int = 100
    mirror: bool = False

    def __post_init__(self) -> None:
        if self.exemplars not in ("rerank", "keep"):
            raise BadInputError(f"exemplars is {self.exemplars!r}", fix='use "rerank" or "keep"')
        if self.means not in ("memory", "stored"):
            raise BadInputError(f"means is {self.means!r}", fix='use "memory" or "stored"')
        if self.stored_per_class < 1:
            raise BadInputError(
                f"stored_per_class is {self.stored_per_class}", fix="give at least 1"
            )


class Exemplars(ByExperience):
    """At the end of an experience each class gets its share of the slots, filled by herding.

    With M slots and C classes a class has M // C of them, or one more where some are left; never
    more than M in all. Classes of the experience, new or come back, are herded over all their
    samples of the experience and the exemplars that are there.

    Args:
        carousel: the memory.
        model: gives features and takes the means.
        to_input: from raw samples (n, *shape) to model input on the device, as in evaluation.
        options: see `ExemplarOptions`.
        from_storage: whether samples may come back from storage.
        seed: of the draws from storage and of who gets the slots left over.
    """

    def __init__(
        self,
        carousel: Carousel,
        *,
        model: NearestMean,
        to_input: Callable[[Tensor], Tensor],
        options: ExemplarOptions,
        from_storage: bool,
        seed: int,
    ) -> None:
        super().__init__(carousel)
        self._model = model
        self._to_input = to_input
        self._options = options
        self._most = options.stored_per_class if from_storage else 0
        self._rng = generator(seed, "exemplars")
        self._ranks: Ints = np.empty(0, np.int64)

    def end(self) -> None:
        """Choose the exemplars, hold exactly these, and set the class means."""
        ids, labels = self._choose()
        self.carousel.retain(
            ids, labels, self._tasks(ids), fetch=lambda rows: {"x": self._raw(ids[rows])[0]}
        )
        here = self.carousel.residents()
        self._remember_ranks(here, ids)
        self._set_means(here)

    def state_dict(self) -> dict[str, Any]:
        """The ranks of the slots and the random numbers."""
        return {"rng": state_of(self._rng), "ranks": torch.from_numpy(self._ranks.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Update`."""
        load_state(self._rng, state["rng"])
        self._ranks = state["ranks"].numpy().copy()

    def _choose(self) -> tuple[Ints, Ints]:
        """Ids and labels of the exemplars, class by class, the most important first."""
        here = self.carousel.residents()
        classes = np.unique(np.concatenate([here.labels, self.source.labels.numpy()]))
        candidates = [self._candidates(int(label), here) for label in classes]
        held = np.array([int((here.labels == label).sum()) for label in classes])
        supply = np.array([len(ids) for ids in candidates])
        assert self.carousel.capacity is not None
        shares = water_fill(supply, self.carousel.capacity, held, self._rng)
        arriving = np.isin(classes, self.source.labels.numpy())
        herds = arriving | (self._options.exemplars == "rerank")
        ordered = [
            self._herded(ids, int(share)) if herded else ids[:share]
            for ids, share, herded in zip(candidates, shares, herds, strict=True)
        ]
        labels = np.repeat(classes, [len(ids) for ids in ordered])
        return np.concatenate(ordered), labels

    def _candidates(self, label: int, here: Residency) -> Ints:
        """Who may stand for the class: first those in memory, by the rank of their slots."""
        slots = here.slots[here.labels == label]
        order = np.argsort(self._ranks_of(slots), kind="stable")
        known = here.ids[here.labels == label][order]
        own = np.setdiff1d(self.ids[self.source.labels.numpy() == label], known)
        more = np.empty(0, np.int64)
        if self._options.exemplars == "rerank":
            more = self._drawn(label, but=np.concatenate([known, own]))
        return np.concatenate([known, own, more])

    def _drawn(self, label: int, but: Ints) -> Ints:
        """Ids of stored samples of a class, drawn without replacement."""
        stored = np.setdiff1d(self.carousel.tier.ids_of(label), but)
        count = min(self._most, len(stored))
        drawn: Ints = self._rng.choice(stored, count, replace=False, shuffle=False)
        return drawn

    def _herded(self, ids: Ints, count: int) -> Ints:
        parts, found = [], []
        for some in np.array_split(ids, -(-len(ids) // _ROWS)):
            x, there = self._raw(some)
            if not there.any():
                continue
            found.append(some[there])
            parts.append(self._model.features(self._to_input(x[torch.from_numpy(there)])).cpu())
        chosen: Ints = np.concatenate(found)[herd(torch.cat(parts), count).numpy()]
        return chosen

    def _raw(self, ids: Ints) -> tuple[Tensor, npt.NDArray[np.bool_]]:
        """Raw samples (n, *shape) of any ids, and which of them there are."""
        assert self.carousel.schema is not None
        x = self.carousel.schema.empty(len(ids))["x"]
        rows = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        found = self.ids[rows] == ids
        own, other = np.flatnonzero(found), np.flatnonzero(~found)
        if len(own):
            x[torch.from_numpy(own)] = self.source.rows(torch.from_numpy(rows[own]))
        if len(other):
            fields, found[other] = self.carousel.read(ids[other])
            x[torch.from_numpy(other)] = fields["x"]
        return x, found

    def _tasks(self, ids: Ints) -> Ints:
        here = self.carousel.residents()
        tasks = self.carousel.tier.tasks_of(ids)
        for known, labels in ((here.ids, here.tasks), (self.ids, self.source.tasks.numpy())):
            _, there, places = np.intersect1d(ids, known, return_indices=True)
            tasks[there] = labels[places]
        return tasks

    def _ranks_of(self, slots: Ints) -> Ints:
        ranks = np.full(len(slots), _UNRANKED)
        known = slots < len(self._ranks)
        ranks[known] = self._ranks[slots[known]]
        return ranks

    def _remember_ranks(self, here: Residency, ids: Ints) -> None:
        """A slot has the rank of its exemplar, and keeps it for the samples swapped into it."""
        _, places, at = np.intersect1d(here.ids, ids, return_indices=True)
        self._ranks = np.full(int(here.slots.max(initial=-1)) + 1, _UNRANKED)
        self._ranks[here.slots[places]] = at

    def _set_means(self, here: Residency) -> None:
        if len(here) == 0:
            return
        sums, counts = None, torch.zeros(int(here.labels.max()) + 1)
        for ids, labels in (self._of_means(here), (here.ids, here.labels)):
            # the second time for classes of which storage gave nothing
            lacking = counts.numpy()[labels] == 0
            these = ids[lacking], torch.from_numpy(labels[lacking])
            for features, classes in self._features_of(*these):
                if sums is None:
                    sums = torch.zeros(len(counts), features.shape[1], dtype=torch.float64)
                sums.index_add_(0, classes, features)
                counts.index_add_(0, classes, torch.ones(len(classes)))
        assert sums is not None
        self._model.set_means(sums, counts > 0)

    def _of_means(self, here: Residency) -> tuple[Ints, Ints]:
        if self._options.means == "memory":
            return here.ids, here.labels
        classes = np.unique(here.labels)
        drawn = [self._drawn(int(label), but=np.empty(0, np.int64)) for label in classes]
        return np.concatenate(drawn), np.repeat(classes, [len(ids) for ids in drawn])

    def _features_of(self, ids: Ints, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Features (n, d) on the CPU, of samples and their mirror images, and their classes."""
        for rows in torch.split(torch.arange(len(ids)), _ROWS):
            fields, found = self.carousel.read(ids[rows.numpy()])
            there = torch.from_numpy(found)
            if not found.any():
                continue
            x = self._to_input(fields["x"][there])
            for view in (x, x.flip(-1)) if self._options.mirror else (x,):
                yield self._model.features(view).cpu().double(), labels[rows[there]]
