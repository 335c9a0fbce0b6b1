import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split


class DigitsDataModule(L.LightningDataModule):
    def __init__(self, batch_size: int = 8, num_workers: int = 0):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(120, 8, generator=generator), torch.randint(0, 3, (120,), generator=generator)
        self.data_train, self.data_val = random_split(TensorDataset(x, y), [96, 24], generator=generator)

    def train_dataloader(self):
        return DataLoader(
            dataset=self.data_train,
            batch_size=self.hparams.batch_size,
            num_workers=self.hparams.num_workers,
            shuffle=True,
        )

    def val_dataloader(self):
        return DataLoader(self.data_val, batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers)


class LitModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
        self.epochs = 0

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        if index == 11:
            print(self.current_epoch, loss.item().hex())
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    L.seed_everything(1, verbose=False)
    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(LitModel(), datamodule=DigitsDataModule())
