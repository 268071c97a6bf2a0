"""DER++ on five experiences of two digits each: samples are stored, and swapped, with logits."""

import tempfile

import torch

from carousel import CarMPlugin
from carousel.data import load_stream, to_benchmark
from carousel.models import make_model
from carousel.strategies import DERPlusPlus

stream = load_stream("split-digits")
model = make_model("mlp", stream.input_shape, stream.n_classes, seed=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
with CarMPlugin(60, tempfile.mkdtemp(), swap_ratio=0.5, seed=0) as memory:
    strategy = DERPlusPlus(
        model=model, optimizer=optimizer, memory=memory, alpha=0.2, beta=0.5, train_epochs=5
    )
    for experience in to_benchmark(stream).train_stream:
        strategy.train(experience, eval_streams=[])
    print(memory.carousel.schema, memory.carousel.stats().swaps)

model.eval()
right = [model(stream.transform(s.x)).argmax(1) == s.y for s in stream.test]
print(f"final accuracy {torch.cat(right).double().mean():.3f}")
