"""A small character model on the sources of Python's standard library, for runs of minutes."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

__all__ = ["CharLM", "Text", "loss_of", "standard_library", "validation_loss"]

CONTEXT, WIDTH, LAYERS, HEADS = 64, 128, 2, 4
ROWS = 16


class Text(NamedTuple):
    """Characters as bytes, int64: the first nine tenths to train on, and the rest."""

    training: Tensor
    held_out: Tensor

    def batch(self, seed: int, step: int) -> Tensor:
        """(rows, context + 1) int64, which follows from seed and step."""
        numbers = torch.Generator().manual_seed((seed << 32) + step)
        return _pieces(
            self.training, torch.randint(len(self.training) - CONTEXT, (ROWS,), generator=numbers)
        )


def standard_library(nbytes: int = 2_000_000) -> Text:
    """The top-level modules in the order of their names, and of these so many bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    content = torch.frombuffer(
        bytearray(b"".join(file.read_bytes() for file in files)[:nbytes]), dtype=torch.uint8
    ).long()
    return Text(*content.split((9 * len(content) // 10, -(-len(content) // 10))))


class CharLM(nn.Module):
    """A transformer that predicts the next byte, (rows, length) int64 to (rows, length, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text: Tensor) -> Tensor:
        """Logits of each place's next byte."""
        hidden = self.embed(text) + self.place.weight
        logits: Tensor = self.out(self.body(hidden, mask=self.mask, is_causal=True))
        return logits


def loss_of(model: CharLM, batch: Tensor) -> Tensor:
    """Mean cross entropy of the next byte, in nats."""
    return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def validation_loss(model: CharLM, text: Text, batches: int = 16) -> float:
    """The loss on pieces that are spread evenly over the held-out text."""
    starts = torch.linspace(0, len(text.held_out) - CONTEXT - 1, 2 * ROWS * batches).long()
    parts = starts.split(2 * ROWS)
    losses = [loss_of(model, _pieces(text.held_out, part)) for part in parts]
    return float(torch.stack(losses).mean())


def _pieces(text: Tensor, starts: Tensor) -> Tensor:
    return text[starts[:, None] + torch.arange(CONTEXT + 1)]
