"""Distillation: a large fixed teacher in eval mode tells a small student what to say, in every step."""

import torch
from torch import nn


def network(width, depth):
    layers = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    teacher, student = network(1024, 6).eval(), network(384, 2)
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    data = torch.randn(4096, 64)
    for step in range(150):
        x = data[torch.randint(0, 4096, (256,))]
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        said = student(x).log_softmax(1)
        loss = nn.functional.kl_div(said, wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
