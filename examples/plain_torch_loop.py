"""Experience replay with a carousel in a plain torch loop: five experiences, two digits each."""

import tempfile

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from carousel import Carousel

x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
x, test = x.float() / 16, torch.arange(len(y)) % 5 == 0
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Carousel(memory_size=50, storage=tempfile.mkdtemp(), swap_ratio=0.5) as memory:
    for digits in ([0, 1], [2, 3], [4, 5], [6, 7], [8, 9]):
        new_x, new_y = (part[~test & torch.isin(y, torch.tensor(digits))] for part in (x, y))
        ids = memory.save(None, new_y, x=new_x)  # keep all samples in storage
        for batch in (rows for _ in range(5) for rows in torch.randperm(len(new_y)).split(16)):
            replay = memory.sample(32)
            logits = model(torch.cat([new_x[batch], replay.x]))
            memory.observe(replay, logits[len(batch) :])  # which of the replayed rows may leave
            optimizer.zero_grad()
            cross_entropy(logits, torch.cat([new_y[batch], replay.labels])).backward()
            optimizer.step()
            memory.step()  # others have come in
        memory.end_experience()
        memory.admit(ids, new_y, fetch=lambda rows, x=new_x: {"x": x[rows]})  # give them slots
    print(f"accuracy {(model(x[test]).argmax(1) == y[test]).double().mean()}", memory.stats().swaps)
