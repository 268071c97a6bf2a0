"""Rainbow Memory with swapping: samples that the model is sure of, and samples that it doubts."""

import tempfile

import torch

from carousel import CarMPlugin
from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.strategies import RainbowMemory


def main() -> float:
    stream = load_stream("split-digits")
    model = make_model("mlp", stream.input_shape, stream.n_classes, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    with tempfile.TemporaryDirectory() as folder, CarMPlugin(50, folder, seed=0) as memory:
        rainbow = RainbowMemory(
            model=model, optimizer=optimizer, memory=memory, train_mb_size=16, train_epochs=33
        )
        for experience in to_benchmark(stream).train_stream:
            rainbow.train(experience, eval_streams=[])
        print(f"samples swapped into RAM: {memory.carousel.stats().swaps.done}")

    model.eval()
    right = [model(stream.transform(test.x)).argmax(1) == test.y for test in stream.test]
    accuracy = torch.cat(right).float().mean().item()
    print(f"accuracy over all {stream.n_classes} classes: {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
