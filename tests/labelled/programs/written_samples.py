"""A character model that writes a sample of text after every tenth step, one character at a time."""

import argparse

import torch
from torch import nn

TEXT = (__doc__ + "the quick brown fox jumps over the lazy dog ") * 40


class Model(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.embed, self.rnn, self.head = (
            nn.Embedding(letters, 48),
            nn.LSTM(48, 128, batch_first=True),
            nn.Linear(128, letters),
        )

    def forward(self, x, state=None):
        out, state = self.rnn(self.embed(x), state)
        return self.head(out), state


@torch.no_grad()
def written(model, letters, length):
    model.eval()
    found, state, last = [], None, torch.zeros(1, 1, dtype=torch.long)
    for _ in range(length):
        scores, state = model(last, state)
        last = torch.multinomial(scores[:, -1].softmax(1), 1)
        found.append(letters[int(last)])
    model.train()
    return "".join(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=1000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    letters = sorted(set(TEXT))
    codes = torch.tensor([letters.index(one) for one in TEXT])
    model = Model(len(letters))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(120):
        starts = torch.randint(0, len(codes) - 65, (16,)).tolist()
        block = torch.stack([codes[s : s + 65] for s in starts])
        scores, _ = model(block[:, :-1])
        loss = nn.functional.cross_entropy(scores.transpose(1, 2), block[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"{step} {loss.item():.3f}", repr(written(model, letters, args.length)[:40]))


if __name__ == "__main__":
    main()
