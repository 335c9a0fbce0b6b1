import torch
from torch.utils.data import DataLoader, TensorDataset


class CFG:
    seed = 42
    epochs = 3
    batch_size = 8
    num_workers = 0
    lr = 0.1


def train_fn(loader, model, optimizer):
    model.train()
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return loss.item()


def train_loop():
    dataset = TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
    valid_dataset = TensorDataset(torch.randn(24, 8), torch.randint(0, 3, (24,)))
    loader_args = {"batch_size": CFG.batch_size, "num_workers": CFG.num_workers, "pin_memory": True}
    train_loader = DataLoader(dataset, shuffle=True, drop_last=True, **loader_args)
    valid_loader = DataLoader(valid_dataset, shuffle=False, **loader_args)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=CFG.lr)
    for epoch in range(CFG.epochs):
        loss = train_fn(train_loader, model, optimizer)
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in valid_loader)
        print(epoch, loss.hex(), right)


if __name__ == "__main__":
    torch.manual_seed(CFG.seed)
    train_loop()
