"""Sharpness-aware minimisation: an optimizer of the program's own that climbs between two backward passes."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(5)


class Climbing(torch.optim.Optimizer):
    def __init__(self, parameters, rho, **options):
        super().__init__(parameters, dict(rho=rho, **options))
        self.inner = torch.optim.SGD(self.param_groups, **options)

    @torch.no_grad()
    def climb(self):
        for group in self.param_groups:
            norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
            for p in group["params"]:
                self.state[p]["here"] = p.clone()
                p.add_(p.grad, alpha=group["rho"] / float(norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["here"])
        self.inner.step()
        self.zero_grad()


net = nn.Sequential(nn.Linear(96, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 12))
optimizer = Climbing(net.parameters(), rho=0.05, lr=0.05)
points = torch.randn(4096, 96)
labels = points[:, :12].argmax(1)
for _step in range(120):
    chosen = torch.randint(0, 4096, (256,))
    x, y = points[chosen], labels[chosen]
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.climb()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.descend()
print("loss", loss.item())
