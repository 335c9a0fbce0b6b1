"""Which ranks are there, where is this one, and on which device? The process group and the mesh of a layout."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from paceline.train import failures
from paceline.train.layout import AXES, Layout, check_ranks

_LET_GO_S = 1.0
_GLOO = "pt_gloo"  # how torch calls the threads that work for a process group of Gloo


@dataclass(frozen=True, kw_only=True)
class World:
    """All ranks as seen from one."""

    layout: Layout
    rank: int
    device: Any  # torch.device
    mesh: Any  # DeviceMesh over the axes in use, slowest first; None for one process
    _groups: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False)

    def position(self, axis: str) -> int:
        """Return where this rank is on an axis, from 0."""
        return int(self.mesh.get_local_rank(axis)) if axis in self.layout.in_use else 0

    def submesh(self, *axes: str) -> Any:
        """Return the mesh over some axes, in the order of `AXES`; each must be one of the mesh."""
        return self.mesh[axes[0]] if len(axes) == 1 else self.mesh[axes]

    def group(self, *axes: str) -> Any:
        """Return the process group of the ranks that differ from this one in these axes only; None where none do."""
        used = tuple(axis for axis in AXES if axis in axes and axis in self.layout.in_use)
        if not used:
            return None
        if used not in self._groups:
            mesh = self.submesh(*used)
            self._groups[used] = (mesh if len(used) == 1 else mesh._flatten("_".join(used))).get_group()
        return self._groups[used]

    def shard_mesh(self) -> Any:
        """Return the mesh that FSDP2 spreads a model over: replicas where there are any, then shards.

        Ranks with other parts of the same sequences shard too: they have gradients of the same parameters.
        """
        import torch

        layout = self.layout
        if layout.cp > 1:  # all the axes there are, by the rules of layouts
            sizes = {"dp": layout.dp} if layout.dp > 1 else {}
            sizes["shard_cp"] = layout.shard * layout.cp
            make = torch.distributed.init_device_mesh
            return make(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        return self.submesh("dp", "shard") if layout.dp > 1 else self.submesh("shard")

    def drawn(self) -> str:
        """Return the state of this rank's random numbers on the CPU, as text."""
        import torch

        return text_of(torch.get_rng_state()) or ""

    @property
    def drawn_as(self) -> str:
        """What ranks must have in common to go on with each other's random numbers."""
        return f"{self.layout} on {self.device.type}"

    def draws(self) -> dict[str, Any]:
        """Return the states of this rank's random numbers, under names that no other rank has."""
        import torch

        states = {f"cpu of rank {self.rank}": torch.get_rng_state()}
        if self.device.type == "cuda":
            states[f"cuda of rank {self.rank}"] = torch.cuda.get_rng_state(self.device)
        return states

    def draw_on(self, text: str, states: Mapping[str, Any] | None) -> None:
        """Have this rank go on with random numbers from its states; without, rank 0 from its own, and others apart."""
        import torch

        if states is None:
            if self.rank == 0:
                torch.set_rng_state(state_of(text))
            draw_apart(self, crc32(text.encode()))
            return
        torch.set_rng_state(states[f"cpu of rank {self.rank}"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(states[f"cuda of rank {self.rank}"], self.device)

    def claim(self, name: str) -> int:
        """Return the next number under a name, from 0, which no other rank gets."""
        import torch

        return int(torch.distributed.distributed_c10d._get_default_store().add(name, 1)) - 1

    @property
    def data_group(self) -> Any:
        """Group of the ranks whose gradients are averaged; None where this one is alone."""
        return self.group("dp", "shard", "cp")

    @property
    def sample_part(self) -> int:
        """Which part of a batch's samples this rank takes, from 0 to `layout.samples` - 1."""
        return self.position("dp") * self.layout.shard + self.position("shard")

    @property
    def sequence(self) -> int:
        """Which part of samples and sequences this rank takes; ranks of one have the same random numbers."""
        return self.sample_part * self.layout.cp + self.position("cp")


def meet() -> bool:
    """Meet the other ranks, if a launcher started any, so that the first error of one ends all.

    Returns:
        Whether the process group was made here.
    """
    import torch

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    owns = not torch.distributed.is_initialized()
    if owns:
        torch.distributed.init_process_group("nccl" if _device(torch).type == "cuda" else "gloo")
    failures.watch(torch.distributed.get_rank())
    return owns


def leave() -> None:
    """Leave the other ranks, once the threads of Gloo have let go of what they exchanged last.

    DistributedDataParallel keeps these threads, and what a backward exchanged belongs to Python: where one of them lets
    go of it after the interpreter's end, the process aborts ("terminate called without an active exception"). Those
    threads at the lowest priority and a busy program on each core, 6 of 18 processes aborted (torch 2.13), and none of
    18 that left by this function. A second is waited at most.
    """
    import torch

    torch.distributed.destroy_process_group()
    deadline = time.monotonic() + _LET_GO_S
    while True:
        time.sleep(0.001)  # one that waits for the interpreter gets it
        if not _gloo_computes() or time.monotonic() > deadline:
            return


def _gloo_computes() -> bool:
    """Say whether a thread of Gloo computes now, or waits for a core; False where threads cannot be listed."""
    for thread in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # ended
            name, _, state = (thread / "stat").read_text().partition("(")[2].rpartition(")")
            if name.startswith(_GLOO) and state.split()[0] == "R":
                return True
    return False


def join(layout: Layout) -> World:
    """Take this rank's place in a layout, after `meet()`.

    Raises:
        UsageError: The layout takes another number of ranks than there are.
    """
    import torch

    device = _device(torch)
    if not torch.distributed.is_initialized():
        check_ranks(layout, 1)
        return World(layout=layout, rank=0, device=device, mesh=None)
    check_ranks(layout, torch.distributed.get_world_size())
    rank, axes = torch.distributed.get_rank(), mesh_axes(layout)
    if not axes:
        return World(layout=layout, rank=rank, device=device, mesh=None)
    sizes = tuple(getattr(layout, axis) for axis in axes)
    mesh = torch.distributed.init_device_mesh(device.type, sizes, mesh_dim_names=axes)
    return World(layout=layout, rank=rank, device=device, mesh=mesh)


def draw_apart(world: World, seed: int | None = None) -> None:
    """Give ranks with other samples other random numbers, and those with the same samples the same.

    Rank 0 goes on as it is, so that it draws what one process would.

    Args:
        world: The ranks.
        seed: What the others begin from; None: rank 0's.
    """
    import torch

    if world.mesh is None:
        return
    sequence = world.sequence
    first = [(torch.initial_seed(), torch.get_rng_state()) if world.rank == 0 else None]
    torch.distributed.broadcast_object_list(first, 0)
    of_first, state = first[0] or (0, None)
    if world.rank:
        torch.manual_seed((of_first if seed is None else seed) + sequence)
    if world.rank and not sequence:
        torch.set_rng_state(state)


def text_of(state: Any) -> str | None:
    """Return a state of random numbers as text."""
    return None if state is None else bytes(state.tolist()).hex()


def state_of(text: str | None) -> Any:
    """Return the state of random numbers that a text stands for."""
    import torch

    return None if text is None else torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def mesh_axes(layout: Layout) -> tuple[str, ...]:
    """Return the axes that the mesh has: those in use, and shard wherever FSDP2 makes the replicas."""
    used = set(layout.in_use)
    if layout.dp > 1 and used & {"tp", "pp"}:
        used.add("shard")
    return tuple(axis for axis in AXES if axis in used)


def _device(torch: Any) -> Any:
    """Return the device of this rank: its own GPU where there are any."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
