"""The training is in a process that multiprocessing forks, and ends with an exception."""

import multiprocessing

import torch


def train():
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(57):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
    raise ValueError("the last batch is empty")


if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
