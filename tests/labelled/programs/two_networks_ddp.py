"""Two processes under torchrun; a generator and a critic, each its own DDP network with its own optimizer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    generator = DDP(nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)))
    critic = DDP(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
    real, fake = torch.ones(512, 1), torch.zeros(512, 1)
    for step in range(60):
        x = torch.randn(512, 64)
        made = generator(torch.randn(512, 16))
        of_critic.zero_grad()
        (bce(critic(x), real) + bce(critic(made.detach()), fake)).backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = bce(critic(made), real)
        loss.backward()
        of_generator.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
