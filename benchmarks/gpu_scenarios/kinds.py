"""Train parameters for which torch refuses fused optimizers: kinds.py complex|sparse"""

import sys

import torch
from _parts import tell_memory


class Model(torch.nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(100, 8, sparse=way == "sparse")
        self.last = torch.nn.Linear(8, 2, bias=False)
        self.turn = torch.nn.Parameter(torch.ones(8, dtype=torch.complex64)) if way == "complex" else None

    def forward(self, tokens):
        found = self.words(tokens)
        return self.last(found if self.turn is None else (found * self.turn).real)


def main(way: str) -> None:
    model = Model(way).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(300):
        model(torch.zeros(16, dtype=torch.long, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained")
    tell_memory()


if __name__ == "__main__":
    main(sys.argv[1])
