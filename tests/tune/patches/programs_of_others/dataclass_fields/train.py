import torch
from config import TrainConfig
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, config: TrainConfig):
        self.config = config
        self.model = torch.nn.Linear(8, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.lr)

    def get_dataloader(self, dataset):
        return DataLoader(
            dataset,
            batch_size=self.config.data.batch_size,
            shuffle=True,
            num_workers=self.config.data.num_workers,
            pin_memory=self.config.data.pin_memory,
        )

    def fit(self, dataset):
        loader = self.get_dataloader(dataset)
        for epoch in range(self.config.epochs):
            for x, y in loader:
                loss = torch.nn.functional.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            print(epoch, loss.item().hex())


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(TrainConfig()).fit(TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,))))
