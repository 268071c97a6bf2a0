"""iCaRL with a carousel on the digits, two at a time: what predicting by class means is worth."""

import tempfile

import torch

from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.strategies import CarMPlugin, ICaRL


def accuracy(model: torch.nn.Module, stream) -> float:
    model.eval()
    hits = [model(stream.transform(test.x)).argmax(1) == test.y for test in stream.test]
    return torch.cat(hits).float().mean().item()


def main() -> float:
    torch.manual_seed(0)
    stream = load_stream("split-digits")
    model = make_model("mlp", stream.input_shape, stream.n_classes, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with tempfile.TemporaryDirectory() as folder, CarMPlugin(50, folder, seed=0) as memory:
        icarl = ICaRL(
            model=model, optimizer=optimizer, memory=memory, train_epochs=15, distill_weight=0.3
        )
        for experience in to_benchmark(stream).train_stream:
            icarl.train(experience, eval_streams=[])
        print(f"{memory.carousel.stats().swaps.done} swaps, {memory.carousel.filled} exemplars")
    final = accuracy(icarl.model, stream)
    print(f"accuracy by logits {accuracy(icarl.model.net, stream):.2f}, by class means {final:.2f}")
    return final


if __name__ == "__main__":
    main()
