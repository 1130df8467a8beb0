"""Small models for sequences of tokens: an LSTM and a transformer.

Guarantee: what a row gives depends on that row alone, and not on how far it was padded: token 0 is
padding, after the last token of a row. With `every_place` there are scores for every place of a
row, made of the tokens up to it; otherwise for the row as a whole. The products of attention are
written out, so that gradients of single records are found for a whole batch at once.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from fedspend.data.sequences import PADDING


class TokenLSTM(nn.Module):
    """Embedding, one LSTM layer, one linear layer."""

    def __init__(self, vocabulary: int, width: int, outputs: int, *, every_place: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, outputs)
        self.every_place = every_place

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        if not self.every_place:
            last = ((tokens != PADDING).sum(dim=1) - 1).clamp(min=0)
            states = states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]
        scores: torch.Tensor = self.head(states)
        return scores


class Block(nn.Module):
    """Attention and a layer of hidden units, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.hidden = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, value: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` is true for (row, place, place) where a place must not look at another."""
        rows, length, width = value.shape
        parts = self.asked(self.before(value)).view(rows, length, 3, self.heads, -1)
        query, key, held = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / math.sqrt(width // self.heads)
        weights = scores.masked_fill(hidden[:, None], -math.inf).softmax(dim=-1)
        seen = (weights @ held).transpose(1, 2).reshape(rows, length, width)
        value = value + self.joined(seen)
        after: torch.Tensor = value + self.hidden(self.between(value))
        return after


class TokenTransformer(nn.Module):
    """Embeddings of tokens and places, some blocks, one linear layer."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int,
        outputs: int,
        *,
        layers: int,
        heads: int,
        every_place: bool,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.after = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        self.every_place = every_place

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        there = tokens != PADDING
        length = tokens.shape[1]
        itself = torch.eye(length, dtype=torch.bool)  # so that padding has something to look at
        hidden = ~(there[:, None, :] | itself)
        if self.every_place:
            hidden = hidden | ~torch.ones(length, length, dtype=torch.bool).tril()
        value = self.embedding(tokens) + self.places[:length]
        for block in self.blocks:
            value = block(value, hidden)
        value = self.after(value)
        if not self.every_place:
            counted = there.sum(dim=1, keepdim=True).clamp(min=1)
            value = (value * there[:, :, None]).sum(dim=1) / counted
        scores: torch.Tensor = self.head(value)
        return scores
