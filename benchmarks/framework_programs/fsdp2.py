"""FSDP2: a stack of blocks sharded over the ranks that torchrun starts."""

import torch
import torch.distributed as dist
from data import Sums
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(4)]
model = torch.nn.Sequential(torch.nn.EmbeddingBag(64, 64), *blocks, torch.nn.Linear(64, 2))
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
for block in model[1:5]:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Sums()
sampler = DistributedSampler(data, seed=0)
losses = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in DataLoader(data, batch_size=16, sampler=sampler):
        loss = functional.cross_entropy(model(batch["input_ids"]), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
if dist.get_rank() == 0:
    print("losses", losses[::12])
dist.destroy_process_group()
