"""A loop by hand with Accelerate: accumulation, clipping, a schedule."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from data import DEVICE, Sums
from torch.nn import functional
from torch.utils.data import DataLoader

set_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=DEVICE == "cpu", gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.EmbeddingBag(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=48)
model, optimizer, loader, schedule = accelerator.prepare(
    model, optimizer, DataLoader(Sums(), batch_size=8, shuffle=True), schedule
)
losses = []
for _ in range(3):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(batch["input_ids"]), batch["labels"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
if accelerator.is_main_process:
    print("losses", losses[::24])
accelerator.end_training()
