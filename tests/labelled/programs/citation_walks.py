"""A graph network on sampled neighbourhoods; the sampling is a Python loop in the training process."""

import argparse
import random

import torch
from torch import nn


class Sage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.own, self.near = nn.Linear(width, 64), nn.Linear(width, 64)
        self.head = nn.Linear(64, 7)

    def forward(self, x, pooled):
        return self.head(torch.relu(self.own(x) + self.near(pooled)))


def neighbourhood(graph, nodes, fanout):
    chosen, owners = [], []
    for place, node in enumerate(nodes):
        near = graph[node]
        for other in random.sample(near, min(fanout, len(near))):
            for far in random.sample(graph[other], min(fanout, len(graph[other]))):
                chosen.append(far)
                owners.append(place)
    return chosen, owners


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fanout", type=int, default=12)
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    count, width = 3000, 128
    graph = [[random.randrange(count) for _ in range(20)] for _ in range(count)]
    features, labels = torch.randn(count, width), torch.randint(0, 7, (count,))
    model = Sage(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(150):
        nodes = random.sample(range(count), 64)
        chosen, owners = neighbourhood(graph, nodes, args.fanout)
        pooled = torch.zeros(len(nodes), width).index_add_(0, torch.tensor(owners), features[chosen])
        pooled /= torch.bincount(torch.tensor(owners), minlength=len(nodes))[:, None].clamp(min=1)
        loss = nn.functional.cross_entropy(model(features[nodes], pooled), labels[nodes])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
