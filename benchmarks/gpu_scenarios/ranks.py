"""Train on ranks with NCCL, started by torchrun: ranks.py ddp|fsdp2|accumulates|sums|forks"""

import contextlib
import gc
import os
import sys

import torch
import torch.distributed as dist
from _parts import loader, loss_of, network, tell_memory, to_cuda


def wrapped(way: str, model: torch.nn.Module, index: int) -> torch.nn.Module:
    if way == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model:
            fully_shard(block)
        fully_shard(model)
        return model
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[index])


def main(way: str) -> None:
    index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", index))
    model = wrapped(way, network(), index)
    optimizer = torch.optim.AdamW(model.parameters())
    steps = 0
    for number, batch in enumerate(loader(640, num_workers=2, pin_memory=True)):
        inputs, target = to_cuda(batch)
        updates = way not in ("accumulates", "sums") or number % 2 == 1  # sums: with an exchange in each micro-step
        with contextlib.nullcontext() if updates or way != "accumulates" else model.no_sync():
            loss_of(model, inputs, target).backward()
        if updates:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    if way == "forks":
        pid = os.fork()
        if pid == 0:
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    total = torch.tensor([float(steps)])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(steps, total.item())
        tell_memory()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
