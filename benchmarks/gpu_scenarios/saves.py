"""Save, load and export with paceline.train: saves.py meta|weights|device [--layout ...]; ranks are started by torchrun

meta and weights: the model has no values before it is split; device: it has. Copies between host and device are exact
on an emulated device, so what is loaded must be, to the last bit, what the model was when it was saved. The losses of
an evaluation are not compared with those of its halves, because the kernels of an emulated device compute nothing.
"""

import os
import tempfile
import threading
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from _parts import Numbers, tell_memory
from torch.utils.data import DataLoader

from paceline.train import Engine, evaluation
from paceline.train.parallel import shard
from paceline.train.recipe import Checks, add_arguments, from_arguments

shard.watch_forward_writes = lambda module, refuse: None  # it compares values, and an emulated device computes none

evaluation._mismatches = lambda measure, value, halves: torch.zeros(2)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.Linear(128, 64)
        self.register_buffer("scale", torch.ones(1))

    def reset_parameters(self) -> None:
        self.scale.fill_(1.0)

    def forward(self, x):
        return x + self.down(torch.relu(self.norm(self.up(x)))) * self.scale


class Rows(Numbers):
    def __getitem__(self, index):
        return torch.full((64,), index / self.size), torch.full((64,), 0.5)


def bytes_of(tensors) -> dict[str, bytes]:
    """Return what a rank holds of each tensor."""
    own = {name: getattr(value, "_local_tensor", value).detach().cpu() for name, value in tensors}
    return {name: value.contiguous().flatten().view(torch.uint8).numpy().tobytes() for name, value in own.items()}


def held(engine, model, optimizer) -> dict[str, bytes]:
    """Return the weights, the state of the optimizer and the averages of a rank."""
    states = ((f"{n} {key}", v) for n, state in enumerate(optimizer.state.values()) for key, v in state.items())
    average = engine._average.values.items() if engine._average is not None else ()
    return bytes_of([*model.state_dict().items(), *states, *((f"average {name}", value) for name, value in average)])


def made(engine, way: str, folder: Path):
    """Return the model and the optimizer; a second model on the meta device reads the checkpoint of the first."""
    with torch.device("cpu" if way == "device" else "meta"):
        blocks = torch.nn.Sequential(*(Block() for _ in range(4)))
    again = (folder / "saved").exists()
    from_init = {"weights": folder / "saved"} if again else {"init": "reset_parameters"}
    given = {"meta": from_init, "weights": {"weights": folder / "w.safetensors"}}.get(way, {})
    loss = torch.nn.functional.mse_loss
    return engine.setup(blocks, lambda model: torch.optim.AdamW(model.parameters()), loss=loss, **given)


def trained(engine, steps: int):
    for inputs, target in engine.loader(DataLoader(Rows(8 * steps), batch_size=8, num_workers=2)):
        engine.train_batch(inputs, target)
        engine.loss()
        engine.step()
        yield


def overwrite(model, value: float) -> None:
    """Change the weights of a rank by a copy from the host, as a step would if the device computed."""
    for weight in model.parameters():
        own = getattr(weight, "_local_tensor", weight).detach()
        own.copy_(torch.full(own.shape, value))


def watch_threads() -> list[str]:
    """Return a list to which the names of threads are added that ask for a stream, apart from the first."""
    found, original = [], torch.cuda.current_stream

    def current_stream(*of):
        if threading.current_thread().name.startswith("paceline-checkpoint"):
            found.append(f"device {torch.cuda.current_device()}")
        return original(*of)

    torch.cuda.current_stream = current_stream
    return found


def first(options, folder: Path) -> dict[str, bytes]:
    """Train, save in the background at some steps, and return what was held at the last save."""
    with Engine(options.engine) as engine:
        model, optimizer = made(engine, options.way, folder)
        assert all(value.is_cuda for value in model.state_dict().values())
        for number, _ in enumerate(trained(engine, 12)):
            if number % 4 == 2:
                saved = held(engine, model, optimizer)
                engine.save(folder / "saved", {"number": number}, wait=number == 6)
                overwrite(model, number)
        measures = engine.evaluate(DataLoader(Rows(20), batch_size=8), again=torch.nn.functional.mse_loss)
        if engine.is_first:
            print(sorted(measures), engine.steps)
        engine.save(folder / "again", wait=False)
        for name in ("w.safetensors", "w.pt"):
            engine.export(folder / name)
        if engine._average is not None:
            with engine.averaged():
                engine.evaluate(DataLoader(Rows(20), batch_size=8))
                engine.export(folder / "average.safetensors")
    return saved


def second(options, folder: Path, saved: dict[str, bytes]) -> None:
    """Load what was saved, and go on; a second engine of the same process."""
    with Engine(options.engine) as engine:
        model, optimizer = made(engine, options.way, folder)
        extra = engine.load(folder / "saved")
        now = held(engine, model, optimizer)
        ranks = [saved] * (dist.get_world_size() if dist.is_initialized() else 1)
        if dist.is_initialized():  # what all ranks have is saved by one, and on emulated devices it differs
            dist.all_gather_object(ranks, saved)
        other = sorted(name for name in saved.keys() | now.keys() if now.get(name) not in [r.get(name) for r in ranks])
        if engine.is_first:
            print(extra, engine.steps, "other than saved:", other)
        for _ in trained(engine, 12):
            pass


def main() -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    parser.add_argument("way")
    options = parser.parse_args()
    options.engine = replace(from_arguments(options), checks=Checks(first_step=False))
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl")
    with tempfile.TemporaryDirectory() as own:
        place = [own]
        if dist.is_initialized():
            dist.broadcast_object_list(place, 0, device=torch.device("cpu"))
        folder = Path(place[0])
        if options.way == "weights" and rank == 0:
            torch.manual_seed(0)
            from paceline.train.checkpoints.tensor_files import write_tensors

            write_tensors(
                torch.nn.Sequential(*(Block() for _ in range(4))).state_dict(), folder / "w.safetensors", ".safetensors"
            )
        if dist.is_initialized():
            dist.barrier()
        in_thread = watch_threads()
        second(options, folder, first(options, folder))
        assert not in_thread, f"the thread that writes checkpoints uses {sorted(set(in_thread))}"
        if dist.is_initialized():
            dist.barrier()
    if rank == 0:
        tell_memory()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
