"""Your own arrays, a stream of experiences, and experience replay with a carousel."""

import tempfile

import numpy as np
import torch
from avalanche.training.supervised import Naive

from carousel import CarMPlugin
from carousel.data import Stream, to_benchmark
from carousel.models import make_model


def main() -> float:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (6, 12, 12))  # your data here: images (n, H, W), labels (n,)
    y = np.arange(1200) % 6
    x = np.clip(patterns[y] + rng.normal(0, 60, (1200, 12, 12)), 0, 255).astype(np.uint8)

    stream = Stream.from_arrays(x, y, experiences=3)
    model = make_model("mlp", stream.input_shape, stream.n_classes, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with tempfile.TemporaryDirectory() as folder, CarMPlugin(30, folder, seed=0) as plugin:
        strategy = Naive(
            model=model, optimizer=optimizer, plugins=[plugin], evaluator=None, train_epochs=3
        )
        for experience in to_benchmark(stream).train_stream:
            strategy.train(experience)
        print(f"samples swapped into RAM: {plugin.carousel.stats().swaps.done}")

    model.eval()
    hits = [model(stream.transform(test.x)).argmax(1) == test.y for test in stream.test]
    accuracy = torch.cat(hits).float().mean().item()
    print(f"accuracy over all {stream.n_classes} classes: {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
