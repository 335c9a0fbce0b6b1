import os

import click
import torch
from torch.utils.data import DataLoader, TensorDataset


@click.command()
@click.option("--batch-size", default=8, show_default=True)
@click.option("-w", "--workers", default=0, show_default=True, help="Workers of the loader.")
@click.option("--lr", default=0.1)
def main(batch_size: int, workers: int, lr: float) -> None:
    torch.manual_seed(2)
    workers = min(workers, os.cpu_count() or 1)
    dataset = TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(3):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item().hex())


if __name__ == "__main__":
    main()
