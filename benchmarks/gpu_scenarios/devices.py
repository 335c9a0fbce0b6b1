"""Use several devices in one process: devices.py second|split|both|current|host"""

import sys

import torch
from _parts import loader, loss_of, network, tell_memory


class Split(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = network("cuda:0"), torch.nn.Linear(10, 10).to("cuda:1")

    def forward(self, inputs):
        return self.last(self.first(inputs).to("cuda:1"))


def steps(model, inputs_on: str, target_on: str) -> int:
    optimizer = torch.optim.AdamW(model.parameters())
    count = 0
    for inputs, target in loader(640, num_workers=2, pin_memory=inputs_on != "cpu"):
        loss_of(model, inputs.to(inputs_on, non_blocking=True), target.to(target_on, non_blocking=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
        count += 1
    return count


def main(way: str) -> None:
    if way == "second":
        print(steps(network("cuda:1"), "cuda:1", "cuda:1"))
    elif way == "current":
        torch.cuda.set_device(1)
        print(steps(network("cuda"), "cuda", "cuda"))
    elif way == "both":
        print([steps(network(device), device, device) for device in ("cuda:0", "cuda:1", "cuda:0")])
    elif way == "split":
        print(steps(Split(), "cuda:0", "cuda:1"))
    else:  # a GPU that is there, and not used
        print(steps(network("cpu"), "cpu", "cpu"), torch.cuda.is_initialized())
        return
    tell_memory()


if __name__ == "__main__":
    main(sys.argv[1])
