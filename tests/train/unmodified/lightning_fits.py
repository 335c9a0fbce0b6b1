"""Lightning's Trainer for one process: shuffled, BatchNorm, clipped, an uneven last batch, validated; as JSON."""

import json
import sys
import warnings

import lightning
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
lightning.seed_everything(0, verbose=False)


def points(count):
    drawn = torch.Generator().manual_seed(count)
    return TensorDataset(torch.randn(count, 6, generator=drawn), torch.randint(3, (count,), generator=drawn))


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            # a bias here would have gradients that are rounding alone, and Adam would make steps of them
            torch.nn.Linear(6, 16, bias=False),
            torch.nn.BatchNorm1d(16),
            torch.nn.ReLU(),
            torch.nn.Linear(16, 3),
        )

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("validated", functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Kept(lightning.Callback):
    def __init__(self):
        self.losses, self.validated = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.losses.append(trainer.callback_metrics["loss"].item())

    def on_validation_end(self, trainer, module):
        self.validated.append(trainer.callback_metrics["validated"].item())


model, kept = Classifier(), Kept()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=2,
    gradient_clip_val=0.5,
    default_root_dir=sys.argv[1],
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
    num_sanity_val_steps=0,
    callbacks=[kept],
)
trainer.fit(model, DataLoader(points(44), batch_size=8, shuffle=True), DataLoader(points(20), batch_size=8))
if trainer.is_global_zero:
    weights = [value.double().abs().sum().item() for value in model.state_dict().values()]
    print(json.dumps({"loss": kept.losses, "validated": kept.validated, "weights": weights}))
