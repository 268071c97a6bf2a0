"""One run of a plain loop: ``python -m benchmarks.peers SETTING.json RESULT.json``.

The result appears whole or not at all, so a study that was killed goes on.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import PEERS, Options
from carousel.data import load_stream
from carousel.models import make_model
from carousel.report.metrics import final_accuracy, forgetting


def main() -> None:
    """Train as the setting says, and write what came out."""
    source, target = map(Path, sys.argv[1:3])
    torch.set_num_threads(1)
    setting = json.loads(source.read_text())
    result = {"setting": setting, **run(**setting)}
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(result))
    temporary.replace(target)


def run(
    strategy: str, benchmark: str, experiences: int, model: str, limit: int | None, **options: Any
) -> dict[str, Any]:
    """Accuracies, fractions, of a run that differs from ours by its code only."""
    seed = options["seed"]
    stream = load_stream(benchmark, experiences=experiences, seed=seed, limit=limit)
    torch.manual_seed(seed)
    network = make_model(model, stream.input_shape, stream.n_classes, seed=seed)
    learner = PEERS[strategy](network, stream.transform, Options(**options))
    start = time.perf_counter()
    rows = []
    for split in stream.train:
        learner.learn(split.x, split.y)
        rows.append([learner.accuracy(test.x, test.y) for test in stream.test])
    matrix = np.array(rows)
    counts = np.array([len(test) for test in stream.test])
    return {
        "final_accuracy": final_accuracy(matrix, counts),
        "forgetting": forgetting(matrix),
        "accuracy_matrix": matrix.tolist(),
        "seconds": time.perf_counter() - start,
    }


if __name__ == "__main__":
    main()
