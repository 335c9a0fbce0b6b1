"""torch.compile of the model, and with an argument of the optimizer's step too."""

import sys

import torch
from data import DEVICE, Sums
from torch.nn import functional
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.EmbeddingBag(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
model = torch.compile(model.to(DEVICE))
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3, device=DEVICE))
update = torch.compile(optimizer.step) if sys.argv[1:] else optimizer.step
losses = []
for _ in range(3):
    for batch in DataLoader(Sums(), batch_size=16, shuffle=True):
        loss = functional.cross_entropy(model(batch["input_ids"].to(DEVICE)), batch["labels"].to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        update()
        losses.append(loss.item())
print("losses", losses[::12])
