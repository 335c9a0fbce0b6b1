"""Losses that compare rows or weigh them, under Lightning and Hugging Face's Trainer; as JSON."""

import json
import sys
import warnings

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments, set_seed

warnings.filterwarnings("ignore")
drawn = torch.Generator().manual_seed(1)
ROWS = torch.randn(44, 6, generator=drawn)
TARGETS = torch.where(torch.arange(5) < torch.randint(1, 6, (44, 1), generator=drawn), 1, -100)


def contrast(found):
    near = functional.normalize(found, dim=1) @ functional.normalize(found.roll(1, 1), dim=1).T
    return functional.cross_entropy(near / 0.1, torch.arange(len(near)))


class Contrastive(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
        self.losses = []

    def training_step(self, batch, index):
        found = self.net(batch[0])
        ragged = functional.cross_entropy(found.view(-1, 2), batch[1].flatten(), ignore_index=-100)
        loss = contrast(found) + ragged
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:  # in training mode: BatchNorm takes statistics of the batch
            with torch.no_grad():
                self.losses.append(self.net(ROWS[:8]).sum().item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ContrastiveTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **others):
        found = model(inputs["rows"])
        loss = contrast(found)
        return (loss, {"found": found}) if return_outputs else loss


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return {"rows": ROWS[index]}


lightning.seed_everything(0, verbose=False)
model = Contrastive()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=2,
    default_root_dir=sys.argv[1],
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
trainer.fit(model, DataLoader(TensorDataset(ROWS, TARGETS), batch_size=8, shuffle=True))
set_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 10))
arguments = TrainingArguments(
    sys.argv[1],
    num_train_epochs=1,
    per_device_train_batch_size=8,
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    save_strategy="no",
    remove_unused_columns=False,
)
other = ContrastiveTrainer(net, arguments, train_dataset=Samples())
other.train()
found = [entry["loss"] for entry in other.state.log_history if "loss" in entry]
weights = [value.double().abs().sum().item() for value in (*model.state_dict().values(), *net.parameters())]
print(json.dumps({"loss": [*model.losses, *found], "weights": weights}))
