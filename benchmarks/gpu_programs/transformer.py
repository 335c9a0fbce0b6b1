"""A language model in bf16 that keeps a GPU busy: nothing is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from marks import Marks
from options import options, sync, told
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

given = options(steps=150)
cuda = given.device == "cuda"
width, depth, length, batch, words = (64, 2, 16, 2, 128) if given.small else (1024, 12, 512, 16, 32768)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, places, _ = x.shape
        heads = max(1, width // 64)
        q, k, v = self.qkv(self.before(x)).view(rows, places, 3, heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, places, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*[Block() for _ in range(depth)])
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


torch.manual_seed(0)
model = Model().to(given.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(0, words, (batch * 16, length + 1))
loader = DataLoader(TensorDataset(tokens), batch_size=batch, shuffle=True, pin_memory=cuda)


def endless(source: DataLoader) -> Iterator[list[torch.Tensor]]:
    while True:
        yield from source


batches = endless(loader)
marks = Marks(given.trace, given.steps, given.device)
begun = time.perf_counter()
for _ in range(given.steps):
    marks.begin_step()
    with marks.phase("data_wait"):
        (text,) = next(batches)
    with marks.phase("transfer"):
        text = text.to(given.device, non_blocking=True)
    with torch.autocast(given.device, dtype=torch.bfloat16):
        with marks.phase("forward"):
            logits = model(text[:, :-1])
        with marks.phase("mid"):
            loss = functional.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
    with marks.phase("backward"):
        loss.backward()
    with marks.phase("optimizer"):
        optimizer.step()
    with marks.phase("tidy"):
        optimizer.zero_grad()
sync(given.device)
marks.end()
told(begun, given.steps, loss=loss.item(), parameters=sum(p.numel() for p in model.parameters()))
