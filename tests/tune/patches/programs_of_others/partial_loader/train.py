from functools import partial

import torch
from torch.utils.data import DataLoader, TensorDataset


def accuracy(model, loader):
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def main():
    torch.manual_seed(1)
    dataset = TensorDataset(torch.randn(120, 8), torch.randint(0, 3, (120,)))
    train_set, val_set = torch.utils.data.random_split(dataset, [96, 24])
    make_loader = partial(DataLoader, batch_size=8, drop_last=True)
    train_loader = make_loader(train_set, shuffle=True)
    val_loader = make_loader(val_set)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in train_loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item().hex(), accuracy(model, val_loader))


if __name__ == "__main__":
    main()
