"""Use torch's profiler while being watched: profiled.py legacy|kineto|schedule"""

import sys

import torch
from _parts import loader, network, tell_memory, train


def main(way: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print(train(model, optimizer, loader(640)))
    if way == "legacy":
        with torch.autograd.profiler.profile(use_kineto=False) as found:
            print(train(model, optimizer, loader(64)))
        print(len(found.function_events) > 0)
    elif way == "kineto":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            print(train(model, optimizer, loader(64)))
        print(len(found.events()) > 0)
    else:
        plan = torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=2)
        seen = []
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda p: seen.append(1)
        ) as found:
            for _ in range(12):
                train(model, optimizer, loader(8))
                found.step()
        print(seen)
    print(train(model, optimizer, loader(640)))
    del found
    tell_memory()


if __name__ == "__main__":
    main(sys.argv[1])
