"""Start other processes: forks.py fork|nested|pool|before|spawn|forkserver"""

import gc
import multiprocessing
import os
import sys

import torch
from _parts import loader, network, tell_memory, train


def child(way: str) -> None:
    gc.collect()
    if way == "nested":
        pid = os.fork()
        if pid == 0:
            gc.collect()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    gc.collect()


def trains(steps: int) -> int:
    model = network()
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), loader(8 * steps))


def collects(number: int) -> int:
    gc.collect()
    return number


def forked(way: str) -> int:
    pid = os.fork()
    if pid == 0:
        child(way)
        sys.exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(way: str) -> None:
    if way == "before":  # the parent has not used CUDA: its children may
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(trains, [3, 4]), torch.cuda.is_initialized())
        assert [len(x) for x, _ in loader(64, num_workers=2, pin_memory=False)] == [8] * 8
        assert not torch.cuda.is_initialized()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(trains, [3, 4]), torch.cuda.is_initialized())
    print(trains(60))
    if way in ("fork", "nested"):
        print([forked(way) for _ in range(3)])
    elif way == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(collects, range(8)))
    elif way in ("spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(2) as pool:
            print(pool.map(trains, [5, 6]))
    print(trains(30))
    tell_memory()


if __name__ == "__main__":
    main(sys.argv[1])
