"""Which ranks are there, where is this one, and on which device? The process group and the mesh of a layout."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from paceline.core.errors import UsageError
from paceline.core.layout import AXES, Layout, check_ranks
from paceline.train import failures, random_states

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
    streams: dict[str, random_states.Stream] = field(default_factory=dict, repr=False)  # apart from the program's own

    @property
    def same_samples(self) -> list[Any]:
        """The groups of ranks that have the same samples as this one, of each axis."""
        return [self.group(axis) for axis in ("pp", "cp", "tp") if axis in self.layout.in_use]

    @property
    def everyone(self) -> list[Any]:
        """The groups of this rank, of each axis: one after the other they reach all ranks."""
        return [self.group(axis) for axis in self.layout.in_use]

    def drawing(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which random numbers come from a stream, if there is one of this name.

        Args:
            name: ``model``, where ranks with the same samples hold other parts of a model or a sequence; or
                ``loading``, NumPy's and Python's where samples are read.
        """
        return self.streams[name].active() if name in self.streams else nullcontext()

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
        """Return the states of this rank's random numbers of torch as text: of the CPU, then of its GPU."""
        return " ".join(text_of(state) or "" for state in random_states.of_torch(self.device).values())

    @property
    def drawn_as(self) -> str:
        """What ranks must have in common to go on with each other's random numbers."""
        return f"{self.layout} on {self.device.type}, with streams"

    def draws(self) -> dict[str, Any]:
        """Return the states of this rank's random numbers, under names that no other rank has."""
        states = {**random_states.of_torch(self.device), "host": json.dumps(random_states.of_host())}
        for name, stream in self.streams.items():
            states |= {f"{name} {kind}": _plain(state) for kind, state in stream.state.items()}
        return {f"{name} of rank {self.rank}": state for name, state in states.items()}

    def draw_on(self, text: str, states: Mapping[str, Any] | None) -> None:
        """Have this rank go on with random numbers from its states; without, rank 0 from its own, and others apart."""
        import torch

        if states is None:
            seed = crc32(text.encode())
            if self.rank == 0:
                found = dict(zip(("cpu", "cuda"), map(state_of, text.split()), strict=False))
                if self.device.type == "cuda":
                    torch.cuda.manual_seed(seed)  # where the checkpoint has none of a GPU
                random_states.put(
                    {kind: found[kind] for kind in found if kind in ("cpu", self.device.type)}, self.device
                )
            draw_apart(self, seed)
            return
        own = {name.removesuffix(f" of rank {self.rank}"): state for name, state in states.items()}
        random_states.put({**own, **json.loads(own["host"])}, self.device)
        for name, stream in self.streams.items():
            saved = {kind: own[f"{name} {kind}"] for kind in stream.state}
            stream.state = {
                kind: json.loads(state) if isinstance(state, str) else state for kind, state in saved.items()
            }

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


def _plain(state: Any) -> Any:
    """Return a state as a checkpoint takes it: a tensor, or text."""
    return state if hasattr(state, "shape") else json.dumps(state)


def meet() -> bool:
    """Meet the other ranks, if a launcher started any, so that the first error of one ends all.

    Returns:
        Whether the process group was made here.
    """
    import torch

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    if torch.distributed.is_initialized():
        failures.watch(torch.distributed.get_rank())
        return False
    device = _device(torch)
    store, rank, ranks = next(torch.distributed.rendezvous("env://"))
    wrong = devices_differ(store, rank, ranks, device.type)
    how = {"backend": "cpu:gloo,cuda:nccl", "device_id": device} if device.type == "cuda" else {"backend": "gloo"}
    torch.distributed.init_process_group(
        store=store, rank=rank, world_size=ranks, **({"backend": "gloo"} if wrong else how)
    )
    failures.watch(rank)
    if wrong:
        raise UsageError(wrong)
    return True


def devices_differ(store: Any, rank: int, ranks: int, device: str) -> str:
    """Return what is wrong with the devices of all ranks, which would wait for each other for ever; empty if nothing.

    Args:
        store: That all ranks reach.
        rank: Of this process.
        ranks: How many there are.
        device: Type of the device of this one.
    """
    store.set(f"paceline/device/{rank}", f"{device} {socket.gethostname()}")
    if rank == 0:
        found = [store.get(f"paceline/device/{each}").decode().split() for each in range(ranks)]
        without = [f"rank {each} on {host}" for each, (kind, host) in enumerate(found) if kind != "cuda"]
        some = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if without[3:] else "")
        store.set(
            "paceline/devices",
            f"{some}: no GPU is visible, but {ranks - len(without)} of {ranks} ranks have one; give each rank a "
            "GPU, or hide the GPUs from all ranks (CUDA_VISIBLE_DEVICES=)"
            if 0 < len(without) < ranks
            else "",
        )
    return str(store.get("paceline/devices").decode())


def leave() -> None:
    """Leave the process group, after the threads of Gloo have released the tensors of the last exchange.

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

    Rank 0 goes on as it is, so that it draws what one process would. Within the model, ranks draw from streams of
    their own where they hold other parts of a sequence or other layers.

    Args:
        world: The ranks.
        seed: What the others begin from; None: rank 0's.
    """
    import torch

    if world.mesh is None:
        return
    first = [(torch.initial_seed(), random_states.of_torch(world.device)) if world.rank == 0 else None]
    torch.distributed.broadcast_object_list(first, 0)
    of_first, state = first[0] or (0, {})
    base, part = of_first if seed is None else seed, world.sample_part
    if part:
        torch.manual_seed(base + part)  # on the GPU too
        loads = random_states.host_of_seed(random_states.mixed("loading", base, part))
        world.streams["loading"] = random_states.Stream(loads, world.device)
    elif world.rank:
        random_states.put(state, world.device)
    for group in world.same_samples:
        of_host = [random_states.of_host()]
        torch.distributed.broadcast_object_list(of_host, torch.distributed.get_global_rank(group, 0), group)
        random_states.put(of_host[0], world.device)
    if {"cp", "pp"} & set(world.layout.in_use):
        own = random_states.mixed("model", base, part, world.position("cp"), world.position("pp"))
        world.streams["model"] = random_states.Stream(random_states.of_seed(own, world.device), world.device)


def draw_within(model: Any, world: World) -> None:
    """Make a model's forward pass draw from the random number generator of this rank, if the layout has one."""
    forward = model.forward

    def drawn(*args: Any, **kwargs: Any) -> Any:
        with world.drawing("model"):
            return forward(*args, **kwargs)

    if "model" in world.streams:
        model.forward = drawn


def text_of(state: Any) -> str | None:
    """Return a state of random numbers as text."""
    return None if state is None else bytes(state.tolist()).hex()


def state_of(text: str | None) -> Any:
    """Return the random number state that is encoded in a text."""
    import torch

    return None if text is None else torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def mesh_axes(layout: Layout) -> tuple[str, ...]:
    """Return the axes that the mesh has: those in use, and shard wherever FSDP2 makes the replicas."""
    used = set(layout.in_use)
    if layout.dp > 1 and used & {"tp", "pp"}:
        used.add("shard")
    return tuple(axis for axis in AXES if axis in used)


def _device(torch: Any) -> Any:
    """Return the device of this rank: its own GPU where there are any.

    Raises:
        UsageError: There are fewer GPUs than ranks of this machine.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    place, count = int(os.environ.get("LOCAL_RANK", "0")), int(torch.cuda.device_count())
    if place >= count > 1:
        raise UsageError(
            f"rank {os.environ.get('RANK', '0')} is number {place} of its machine (LOCAL_RANK, from 0), where {count} "
            f"GPUs are visible; start at most {count} ranks there"
        )
    device = torch.device("cuda", place if count > 1 else 0)  # a launcher may show each rank its own GPU only
    torch.cuda.set_device(device)
    return device
