"""End in the middle of training: ends.py killed|terminated|interrupted|raises|exits|worker|aborts"""

import os
import signal
import sys
import time

import torch
from _parts import loader, network, train


def batches(way: str):
    workers = loader(400, num_workers=2, pin_memory=True)
    iterator = iter(workers)
    for number, batch in enumerate(iterator):
        yield batch
        if number == 30:
            print("so far", flush=True)
            end(way, iterator)


def end(way: str, iterator) -> None:
    time.sleep(0.5)  # or a worker that hands over a batch now prints a traceback, with and without Paceline
    if way == "raises":
        raise ValueError("the program's own fault")
    if way == "exits":
        os._exit(7)
    if way == "worker":
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
    if way == "aborts":
        os.abort()
    number = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "interrupted": signal.SIGINT}.get(way)
    if number is not None:
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    model = network()
    train(model, torch.optim.AdamW(model.parameters()), batches(sys.argv[1]))
    print("not reached")
