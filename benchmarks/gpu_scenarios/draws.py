"""Compare the random numbers of ranks, and go on with them on another layout: draws.py

The states of the generators are compared: an emulated device computes no random numbers, but counts how many were
asked for. The program starts its ranks itself: four as dp=2,tp=2, which save, then two as tp=2, which load.
"""

import hashlib
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from _parts import tell_memory

from paceline.train import Engine


class Dropped(torch.nn.Module):
    """A feed-forward part under the names that `tp` knows, and a dropout that all ranks of a `tp` group compute."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x):
        return torch.nn.functional.dropout(x + self.down_proj(torch.nn.functional.relu(self.up_proj(x))), 0.5)


def states(engine) -> list[str]:
    """Return a name for the state of the GPU's random numbers of each rank."""
    own = hashlib.sha256(torch.cuda.get_rng_state(engine.device).numpy().tobytes()).hexdigest()[:8]
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def ranks(layout: str, way: str, folder: str) -> None:
    torch.manual_seed(3)
    with Engine({"layout": layout, "checks": {"first_step": False, "samples": False}}) as engine:
        torch.cuda.manual_seed(100 + dist.get_rank())  # ranks of a program may differ before
        model = torch.nn.Sequential(Dropped(), Dropped())
        model.tp_plan = {"*.up_proj": "colwise", "*.down_proj": "rowwise"}
        engine.setup(model, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), loss=torch.nn.functional.mse_loss)
        begun = states(engine)
        if way == "load":
            engine.load(folder)
        loaded = states(engine)
        for _ in range(3):
            engine.train_batch(torch.ones(4, 32, device=engine.device), torch.zeros(4, 32, device=engine.device))
            engine.step()
        ended = states(engine)
        if way == "save":
            engine.save(folder)
        groups = [found[i : i + 2] for found in (begun, loaded, ended) for i in range(0, len(found), 2)]
        if dist.get_rank() == 0:
            print("same in each tp group:", all(first == second for first, second in groups))
            print("dp ranks differ:", way == "load" or ended[0] != ended[2])
            print("drawn:", loaded != ended, "loaded:", way == "save" or begun != loaded)
            tell_memory()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for count, layout, way in (("4", "dp=2,tp=2", "save"), ("2", "tp=2", "load")):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
            subprocess.run([*torchrun, __file__, layout, way, f"{folder}/saved"], check=True)


if __name__ == "__main__":
    ranks(*sys.argv[1:]) if sys.argv[1:] else main()
