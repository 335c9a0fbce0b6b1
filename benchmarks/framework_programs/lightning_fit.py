"""Lightning's Trainer, with validation; the optimizer is given a closure, as Lightning does."""

import sys
import warnings

import lightning
import torch
from data import DEVICE, Sums
from torch.nn import functional
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
lightning.seed_everything(0, verbose=False)


class Classifier(lightning.LightningModule):
    def __init__(self, optimizer: str) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.head = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
        self.chosen = optimizer
        self.seen = []

    def loss(self, batch):
        return functional.cross_entropy(self.head(self.embed(batch["input_ids"]).mean(1)), batch["labels"])

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        if self.chosen == "lbfgs":
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


model = Classifier(sys.argv[1] if len(sys.argv) > 1 else "adamw")
trainer = lightning.Trainer(
    accelerator="cpu" if DEVICE == "cpu" else "gpu",
    max_epochs=2,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
    logger=False,
    num_sanity_val_steps=0,
)
trainer.fit(model, DataLoader(Sums(), batch_size=16, shuffle=True), DataLoader(Sums(64), batch_size=16))
print("losses", model.seen[::16])
