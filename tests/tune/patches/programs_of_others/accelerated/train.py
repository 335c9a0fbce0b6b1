import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def get_dataloaders(accelerator: Accelerator, batch_size: int, num_workers: int):
    train = TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
    valid = TensorDataset(torch.randn(24, 8), torch.randint(0, 3, (24,)))
    train_dataloader = DataLoader(train, shuffle=True, batch_size=batch_size, num_workers=num_workers)
    eval_dataloader = DataLoader(valid, shuffle=False, batch_size=24)
    return train_dataloader, eval_dataloader


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu)
    set_seed(config["seed"])
    train_dataloader, eval_dataloader = get_dataloaders(accelerator, config["batch_size"], args.num_workers)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        for x, y in train_dataloader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in eval_dataloader)
        accelerator.print(f"epoch {epoch}:", loss.item().hex(), right)


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--cpu", action="store_true", help="If passed, will train on the CPU.")
    parser.add_argument("--num_workers", type=int, default=0, help="Workers of each dataloader.")
    args = parser.parse_args()
    training_function({"lr": 2e-2, "num_epochs": 3, "seed": 42, "batch_size": 8}, args)


if __name__ == "__main__":
    main()
