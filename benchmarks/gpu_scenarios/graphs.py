"""Capture CUDA graphs while being watched: graphs.py whole|callables|again"""

import sys

import torch
from _parts import loader, loss_of, network, tell_memory, to_cuda, train


def captured(model, optimizer, inputs, target) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            loss_of(model, inputs, target).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss_of(model, inputs, target).backward()
        optimizer.step()
    return graph


def main(way: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print(train(model, optimizer, loader(640)))  # watched and timed, before anything is captured
    first = to_cuda(next(iter(loader())))
    if way == "callables":
        model = torch.cuda.make_graphed_callables(model, (first[0].clone(),))
        print(train(model, optimizer, loader(640)))
    else:
        for _ in range(2 if way == "again" else 1):
            graph = captured(model, optimizer, *first)
            for _ in range(80):
                graph.replay()
            del graph
        print(train(model, optimizer, loader(640)))
    del first, model, optimizer
    tell_memory()


if __name__ == "__main__":
    main(sys.argv[1])
