"""The metrics against those of Avalanche, where it has them, on one short run."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from avalanche.evaluation.metrics import (
    accuracy_metrics,
    bwt_metrics,
    forgetting_metrics,
    forward_transfer_metrics,
)
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive

from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.report import metrics
from carousel.runs.evaluate import examine, split_sizes
from carousel.storage import MemoryTier
from carousel.strategies import CarMPlugin

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run():
    """What Avalanche says after the last experience, and the scores of our matrix."""
    stream = load_stream("split-digits", limit=20)
    benchmark = to_benchmark(stream)
    model = make_model("mlp", stream.input_shape, stream.n_classes, seed=0)
    parts = [
        metric(experience=True, stream=True)
        for metric in (accuracy_metrics, bwt_metrics, forgetting_metrics, forward_transfer_metrics)
    ]
    with warnings.catch_warnings(), CarMPlugin(10, MemoryTier(), seed=0, sync=True) as memory:
        warnings.simplefilter("ignore")
        naive = Naive(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.2),
            evaluator=EvaluationPlugin(*parts, loggers=[]),
            plugins=[memory],
            train_mb_size=8,
            train_epochs=1,
            eval_every=0,
        )
        untrained, rows = examine(model, stream, CPU).class_il, []
        for experience in benchmark.train_stream:
            naive.train(experience, eval_streams=[benchmark.test_stream])
            rows.append(examine(model, stream, CPU).class_il)
        told = naive.eval(benchmark.test_stream)
    matrix = np.array(rows)
    return told, matrix, metrics.score(matrix, split_sizes(stream.test), untrained)


def test_the_run_tells_conventions_apart(run):
    _, matrix, scores = run
    assert scores.forgetting != pytest.approx(metrics.forgetting_first_minus_last(matrix))
    assert scores.fwt != 0


def test_avalanche_finds_the_same(run):
    told, matrix, scores = run
    phase = "eval_phase/test_stream"
    last = [told[f"Top1_Acc_Exp/{phase}/Exp{i:03}"] for i in range(len(matrix))]
    assert last == pytest.approx(matrix[-1].tolist())
    first = metrics.forgetting_first_minus_last(matrix)
    assert told[f"Top1_Acc_Stream/{phase}"] == pytest.approx(scores.final_accuracy)
    assert told[f"StreamForgetting/{phase}"] == pytest.approx(first)
    assert told[f"StreamBWT/{phase}"] == pytest.approx(scores.bwt) == pytest.approx(-first)
    assert told[f"StreamForwardTransfer/{phase}"] == pytest.approx(scores.fwt)
