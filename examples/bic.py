"""BiC with a carousel on the digits, two at a time: what the bias correction is worth."""

import tempfile

import torch

from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.strategies import BiC, CarMPlugin
from carousel.strategies.bias import Line


def accuracy(model: torch.nn.Module, stream) -> float:
    model.eval()
    hits = [model(stream.transform(test.x)).argmax(1) == test.y for test in stream.test]
    return torch.cat(hits).float().mean().item()


def main() -> float:
    torch.manual_seed(0)
    stream = load_stream("split-digits")
    model = make_model("mlp", stream.input_shape, stream.n_classes, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    with tempfile.TemporaryDirectory() as folder, CarMPlugin(40, folder, seed=0) as memory:
        bic = BiC(model=model, optimizer=optimizer, memory=memory, train_epochs=20)
        for experience in to_benchmark(stream).train_stream:
            bic.train(experience, eval_streams=[])
        print(f"{memory.carousel.stats().swaps.done} swaps; {len(bic.held_out)} samples held out")
    final = accuracy(bic.model, stream)
    bic.model.apply_line(Line())  # no correction
    print(f"without the correction {accuracy(bic.model, stream):.2f}, accuracy {final:.2f}")
    return final


if __name__ == "__main__":
    main()
