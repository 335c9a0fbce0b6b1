"""Batches that are not simply moved to the current device: moves.py packed|second|host|partly"""

import sys

import torch
from _parts import Numbers, loader, network, tell_memory, train
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader


def packed(samples):
    rows = torch.stack([x for x, _ in samples]).unsqueeze(-1)
    lengths = torch.tensor([8 + y for _, y in samples])
    return rows, lengths, torch.tensor([y for _, y in samples])


def train_packed() -> int:
    model = torch.nn.Sequential(torch.nn.Linear(1, 16)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    steps = 0
    for rows, lengths, _ in DataLoader(Numbers(640), batch_size=8, collate_fn=packed, num_workers=2):
        sequence = pack_padded_sequence(rows.cuda(), lengths, batch_first=True, enforce_sorted=False)
        assert lengths.device.type == "cpu"
        model(sequence.data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


def main(way: str) -> None:
    if way == "packed":
        print(train_packed())
        tell_memory()
        return
    device = "cuda:1" if way == "second" else "cuda:0"
    model = network(device)
    optimizer = torch.optim.AdamW(model.parameters())
    print(train(model, optimizer, loader(640, num_workers=2), lambda b: (b[0].to(device), b[1].to(device))))
    if way == "host":  # the same loop later reads its batches on the host
        print([(x.numpy().shape, y.numpy().tolist()) for x, y in loader(64, num_workers=2)])
    if way == "partly":
        for inputs, target in loader(320, num_workers=2):
            assert target.numpy().shape == (8,)
            model(inputs.to(device)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    tell_memory()


if __name__ == "__main__":
    main(sys.argv[1])
