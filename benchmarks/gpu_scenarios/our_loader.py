"""Batches by paceline.data.Loader on the device: our_loader.py whole|early|forks|raises"""

import gc
import os
import sys

import torch
from _parts import network, tell_memory, train

from paceline.data import Loader


class Rows:
    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 200 and sys.argv[1] == "raises":
            raise ValueError("a bad sample")
        return torch.full((64,), index / 320), index % 10


def main(way: str) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    data = Loader(Rows(), 8, device="cuda", threads=2)
    same = lambda batch: batch  # noqa: E731
    before = torch.cuda.memory_allocated()
    for _ in range(6):
        if way == "early":
            for number, batch in enumerate(data):
                train(model, optimizer, [batch], same)
                if number == 3:
                    break
            del batch
        elif way == "raises":
            try:
                train(model, optimizer, data, same)
            except Exception as error:
                print(type(error).__name__, "a bad sample" in str(error))
                del error
        else:
            print(train(model, optimizer, data, same))
        gc.collect()
        torch.cuda.synchronize()
        if way == "forks":
            pid = os.fork()
            if pid == 0:
                gc.collect()
                sys.exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    state = sum(v.numel() * v.element_size() for s in optimizer.state.values() for v in s.values() if v.is_cuda)
    print("kept", torch.cuda.memory_allocated() - before <= state + 512 * 64)
    del data
    tell_memory()


if __name__ == "__main__":
    main(sys.argv[1])
