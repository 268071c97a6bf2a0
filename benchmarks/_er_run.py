"""One run of an accuracy study, in a process of its own.

``python -m benchmarks._er_run SETTING.json RESULT.json`` trains ER as the setting says and writes
what came out. The result appears whole or not at all, so a study that was killed goes on.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.report.metrics import final_accuracy, forgetting
from carousel.runs.evaluate import accuracies, split_sizes
from carousel.strategies import ER, CarMPlugin

__all__ = ["Setting"]


@dataclass(frozen=True)
class Setting:
    """What a run trains.

    Args:
        benchmark: stream to learn.
        memory_size: slots.
        swap_ratio: share of the replayed rows that swaps; 0 is plain ER.
        seed: class order, initial weights, and all draws; runs of one seed are a pair.
        epochs: passes over an experience.
        experiences: in the stream.
        batch_size: rows of the stream a step, and as many of the memory.
        lr: of AdamW.
        model: by name.
        limit: most samples of a class, None for all.
    """

    benchmark: str
    memory_size: int
    swap_ratio: float
    seed: int
    epochs: int
    experiences: int = 10
    batch_size: int = 64
    lr: float = 1e-3
    model: str = "cnn"
    limit: int | None = None

    @property
    def name(self) -> str:
        """Names the run's result file; a limited run is another run."""
        name = f"{self.benchmark}_em{self.memory_size}_p{self.swap_ratio:g}_seed{self.seed}"
        return name if self.limit is None else f"{name}_limit{self.limit}"


def run(setting: Setting) -> dict[str, Any]:
    """Train and test; accuracies are fractions."""
    stream = load_stream(
        setting.benchmark,
        experiences=setting.experiences,
        seed=setting.seed,
        limit=setting.limit,
    )
    torch.manual_seed(setting.seed)
    model = make_model(setting.model, stream.input_shape, stream.n_classes, seed=setting.seed)
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        CarMPlugin(
            setting.memory_size,
            folder,
            swap_ratio=setting.swap_ratio,
            swap=setting.swap_ratio > 0,
            batch_size_mem=setting.batch_size,
            seed=setting.seed,
        ) as memory,
    ):
        strategy = ER(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), setting.lr),
            memory=memory,
            train_mb_size=setting.batch_size,
            train_epochs=setting.epochs,
        )
        matrix = []
        for experience in to_benchmark(stream).train_stream:
            strategy.train(experience)
            matrix.append(accuracies(model, stream, torch.device("cpu")))
        stats = memory.carousel.stats()
    table, counts = np.array(matrix), split_sizes(stream.test)
    return {
        "setting": asdict(setting),
        "final_accuracy": float(final_accuracy(table, counts)),
        "forgetting": float(forgetting(table)),
        "accuracy_matrix": table.tolist(),
        "test_counts": counts.tolist(),
        "swaps": stats.swaps.as_dict(),
        "distinct_samples_replayed": stats.distinct_samples_replayed,
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Run the setting of the first file and write the second."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    result = run(Setting(**json.loads(source.read_text())))
    part = target.with_suffix(".part")
    part.write_text(json.dumps(result))
    os.replace(part, target)


if __name__ == "__main__":
    main()
