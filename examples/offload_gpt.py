"""A small GPT whose optimizer states are eight times the RAM they may take: what moves."""

from pathlib import Path

import torch
from torch import nn

from carousel.offload import TieredAdamW

CONTEXT, WIDTH, STEPS, MIB = 32, 256, 60, 2**20


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True)
        self.body, self.out = nn.TransformerEncoder(layer, 3), nn.Linear(WIDTH, 256)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.out(self.body(self.embed(x) + self.place.weight, mask=mask, is_causal=True))


torch.manual_seed(0)
text = torch.tensor(list(Path(torch.__file__).read_bytes()[:1000]))
model = GPT()
optimizer = TieredAdamW(model.parameters(), ram_budget="2500KiB", storage="states")
for _ in range(STEPS):
    batch = torch.stack([text[i : i + CONTEXT + 1] for i in torch.randint(960, (16,))])
    logits = model(batch[:, :-1])
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
    optimizer.step()
optimizer.close()
stats, hits = optimizer.stats(), (logits.argmax(-1) == batch[:, 1:]).float()
print(f"states {stats.state_bytes / MIB:.1f} MiB, in {stats.ram_bytes / MIB:.1f} MiB of RAM")
print(f"moved in {STEPS} steps: {(stats.read_bytes + stats.written_bytes) / MIB:.0f} MiB")
print(f"accuracy {hits.mean():.3f} on the next character")
