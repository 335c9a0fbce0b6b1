import argparse

import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset


def load_config(path):
    with open(path) as file:
        return yaml.safe_load(file)


def build_dataloader(dataset, cfg, train):
    num_workers = cfg["data"]["num_workers"]
    return DataLoader(
        dataset,
        batch_size=cfg["data"]["batch_size"],
        shuffle=train,
        num_workers=num_workers,
        pin_memory=cfg["data"].get("pin_memory", False),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="configs/base.yaml")
    args = parser.parse_args()
    cfg = load_config(args.config)
    torch.manual_seed(cfg["seed"])
    dataset = TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
    loader = build_dataloader(dataset, cfg, train=True)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["optim"]["lr"])
    for epoch in range(3):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item().hex())


if __name__ == "__main__":
    main()
