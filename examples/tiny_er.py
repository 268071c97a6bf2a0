"""TinyER on five experiences of two digits each: one pass, a memory of 60 samples, and swapping."""

import tempfile

import torch

from carousel import CarMPlugin
from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.strategies import TinyER

stream = load_stream("split-digits")
model = make_model("mlp", stream.input_shape, stream.n_classes, seed=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
with CarMPlugin(60, tempfile.mkdtemp(), swap_ratio=0.5, seed=0) as memory:
    strategy = TinyER(model=model, optimizer=optimizer, memory=memory)  # 10 new and 10 old a step
    for experience in to_benchmark(stream).train_stream:
        strategy.train(experience, eval_streams=[])
    print(memory.carousel.stats().swaps)

model.eval()
right = [model(stream.transform(s.x)).argmax(1) == s.y for s in stream.test]
print(f"final accuracy {torch.cat(right).double().mean():.3f}")
