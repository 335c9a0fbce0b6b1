"""The ranks of a run: process groups, device mesh, this rank's position and device, and its random streams."""

from __future__ import annotations

import functools
import itertools
import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

from paceline.core.errors import UsageError
from paceline.core.layout import AXES, Layout, check_ranks
from paceline.train.ranks import failures, random_states

_LET_GO_S = 1.0
_groups_made = itertools.count()  # process groups of this process; all ranks count alike
_GLOO = "pt_gloo"  # the thread name that torch gives the threads of a Gloo process group


@dataclass(frozen=True, kw_only=True)
class World:
    """All ranks, as seen from one rank."""

    layout: Layout
    rank: int
    device: Any  # torch.device
    mesh: Any  # DeviceMesh over the axes in use, slowest first; None for one process
    timeout_s: float | None = None  # longest wait of a collective; None: torch's default
    _groups: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False)
    streams: dict[str, random_states.Stream] = field(
        default_factory=dict, repr=False
    )  # separate from the program's own random states

    @property
    def same_samples(self) -> list[Any]:
        """The process groups of ranks with the same samples as this one, one for each axis."""
        return [self.group(axis) for axis in ("pp", "cp", "tp") if axis in self.layout.in_use]

    @property
    def everyone(self) -> list[Any]:
        """The process groups of this rank, one for each axis; applied one after the other, they cover all ranks."""
        return [self.group(axis) for axis in self.layout.in_use]

    def drawing(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which random numbers come from a named stream, if that stream exists.

        Args:
            name: ``model``, used if ranks with the same samples hold other parts of a model or a sequence; or
                ``loading``, NumPy's and Python's states while samples are read.
        """
        return self.streams[name].active() if name in self.streams else nullcontext()

    def position(self, axis: str) -> int:
        """Return the index of this rank on an axis, from 0."""
        return int(self.mesh.get_local_rank(axis)) if axis in self.layout.in_use else 0

    def submesh(self, *axes: str) -> Any:
        """Return the mesh over some axes, in the order of `AXES`. Each axis must be in the mesh."""
        return self.mesh[axes[0]] if len(axes) == 1 else self.mesh[axes]

    def group(self, *axes: str) -> Any:
        """Return the process group of the ranks that differ from this one in these axes only; None if there is none."""
        used = tuple(axis for axis in AXES if axis in axes and axis in self.layout.in_use)
        if not used:
            return None
        if used not in self._groups:
            mesh = self.submesh(*used)
            self._groups[used] = (mesh if len(used) == 1 else mesh._flatten("_".join(used))).get_group()
            set_timeout([self._groups[used]], self.timeout_s)
        return self._groups[used]

    def shard_mesh(self) -> Any:
        """Return the mesh for FSDP2: the replicas if there are any, then the shards.

        Ranks with other parts of the same sequences (cp) count as shards too, because they have gradients of
        the same parameters.
        """
        import torch

        layout = self.layout
        if layout.cp > 1:  # a layout with cp has no other axes than these
            sizes = {"dp": layout.dp} if layout.dp > 1 else {}
            sizes["shard_cp"] = layout.shard * layout.cp
            make = torch.distributed.init_device_mesh
            mesh = make(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
            set_timeout(mesh.get_all_groups(), self.timeout_s)
            return mesh
        return self.submesh("dp", "shard") if layout.dp > 1 else self.submesh("shard")

    def drawn(self) -> str:
        """Return this rank's torch random states as text: of the CPU, then of its GPU."""
        return " ".join(text_of(state) or "" for state in random_states.of_torch(self.device).values())

    @property
    def drawn_as(self) -> str:
        """A text that two runs must share to continue with each other's random numbers."""
        return f"{self.layout} on {self.device.type}, with streams"

    def draws(self) -> dict[str, Any]:
        """Return the random states of this rank, under names that no other rank has."""
        states = {**random_states.of_torch(self.device), "host": json.dumps(random_states.of_host())}
        for name, stream in self.streams.items():
            states |= {f"{name} {kind}": _plain(state) for kind, state in stream.state.items()}
        return {f"{name} of rank {self.rank}": state for name, state in states.items()}

    def draw_on(self, text: str, states: Mapping[str, Any] | None, host: random_states.State | None = None) -> None:
        """Restore this rank's random numbers.

        Args:
            text: The torch states of rank 0, as `drawn` returns them.
            states: The states of this rank from a checkpoint. With None, rank 0 continues from `text`, the other ranks
                get separate random numbers of torch, and all ranks continue from `host`.
            host: The states of Python and NumPy of rank 0; None: they stay as they are.
        """
        import torch

        if states is None:
            random_states.put(host or {}, self.device)
            seed = crc32(text.encode())
            if self.rank == 0:
                found = dict(zip(("cpu", "cuda"), map(state_of, text.split()), strict=False))
                if self.device.type == "cuda":
                    torch.cuda.manual_seed(seed)  # if the checkpoint has no GPU state
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
        """Return the next number for a name, from 0. No other rank gets the same number."""
        import torch

        return int(torch.distributed.distributed_c10d._get_default_store().add(name, 1)) - 1

    @property
    def data_group(self) -> Any:
        """The process group of the ranks whose gradients are averaged; None if there is only this one."""
        return self.group("dp", "shard", "cp")

    @property
    def sample_part(self) -> int:
        """The index of this rank's part of a batch's samples, from 0 to `layout.samples` - 1."""
        return self.position("dp") * self.layout.shard + self.position("shard")


def _plain(state: Any) -> Any:
    """Return a random state in a form that a checkpoint can store: a tensor, or text."""
    return state if hasattr(state, "shape") else json.dumps(state)


def meet() -> bool:
    """Create the process group, if a launcher started several ranks, and make an error of one rank end all.

    Returns:
        Whether this call created the process group.
    """
    import torch

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    if torch.distributed.is_initialized():
        failures.watch(torch.distributed.get_rank())
        return False
    device = _device(torch)
    store, rank, ranks = _met(*(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")))
    store = torch.distributed.PrefixStore(f"paceline/group/{next(_groups_made)}", store)
    wrong = devices_differ(store, rank, ranks, device.type)
    how = {"backend": "cpu:gloo,cuda:nccl", "device_id": device} if device.type == "cuda" else {"backend": "gloo"}
    torch.distributed.init_process_group(
        store=store, rank=rank, world_size=ranks, **({"backend": "gloo"} if wrong else how)
    )
    failures.watch(rank)
    if wrong:
        raise UsageError(wrong)
    return True


@functools.cache
def _met(*place: str | None) -> Any:
    """Return the store, rank and number of ranks that the environment names; they stay for all groups of the process.

    The addresses of a group that was left stay in the store. A second store would ask for the same port while another
    rank may still use the first.
    """
    import torch

    del place
    return next(torch.distributed.rendezvous("env://"))


def devices_differ(store: Any, rank: int, ranks: int, device: str) -> str:
    """Return a message if only some ranks have a GPU, since such ranks would wait for each other forever; otherwise "".

    Args:
        store: A store that all ranks reach.
        rank: The number of this rank.
        ranks: The number of ranks.
        device: The device type of this rank.
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
    """Leave the process group, after the Gloo threads have released the tensors of the last exchange.

    DistributedDataParallel keeps these threads alive, and the tensors of a backward pass belong to Python. If a
    thread releases one after the interpreter has ended, the process aborts ("terminate called without an active
    exception"). With those threads at the lowest priority and a busy program on each core, 6 of 18 processes
    aborted (torch 2.13), and none of 18 that used this function. It waits at most one second.
    """
    import torch

    torch.distributed.destroy_process_group()
    deadline = time.monotonic() + _LET_GO_S
    while True:
        time.sleep(0.001)  # lets a thread that waits for the interpreter lock run
        if not _gloo_computes() or time.monotonic() > deadline:
            return


def _gloo_computes() -> bool:
    """Return whether a Gloo thread is running or ready to run; False if threads cannot be listed."""
    for thread in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # ended
            name, _, state = (thread / "stat").read_text().partition("(")[2].rpartition(")")
            if name.startswith(_GLOO) and state.split()[0] == "R":
                return True
    return False


def set_timeout(groups: Iterable[Any], timeout_s: float | None) -> None:
    """Set how long collectives of process groups wait; None leaves it as it is. Groups do not inherit it in torch."""
    from torch.distributed.distributed_c10d import _set_pg_timeout

    if timeout_s is not None:
        for group in groups:
            _set_pg_timeout(timedelta(seconds=timeout_s), group)


def join(layout: Layout, timeout_s: float | None = None) -> World:
    """Take this rank's place in a layout, after `meet()`.

    Args:
        layout: Of the run.
        timeout_s: Longest wait of a collective; None: torch's default.

    Raises:
        UsageError: The number of ranks differs from that of the layout.
    """
    import torch

    device = _device(torch)
    if not torch.distributed.is_initialized():
        check_ranks(layout, 1)
        return World(layout=layout, rank=0, device=device, mesh=None)
    check_ranks(layout, torch.distributed.get_world_size())
    set_timeout([None], timeout_s)
    rank, axes = torch.distributed.get_rank(), mesh_axes(layout)
    if not axes:
        return World(layout=layout, rank=rank, device=device, mesh=None, timeout_s=timeout_s)
    sizes = tuple(getattr(layout, axis) for axis in axes)
    mesh = torch.distributed.init_device_mesh(device.type, sizes, mesh_dim_names=axes)
    set_timeout(mesh.get_all_groups(), timeout_s)
    return World(layout=layout, rank=rank, device=device, mesh=mesh, timeout_s=timeout_s)


def draw_apart(world: World, seed: int | None = None) -> None:
    """Give ranks with different samples different random numbers, and ranks with the same samples the same.

    Rank 0 keeps its state, so that it draws the numbers of one process. Within the model, ranks draw from their
    own streams if they hold other parts of a sequence or other layers.

    Args:
        world: The ranks.
        seed: The seed for the other ranks; None: the seed of rank 0.
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
    """Make a model's forward pass draw from the random stream of this rank, if the layout has one."""
    forward = model.forward

    def drawn(*args: Any, **kwargs: Any) -> Any:
        with world.drawing("model"):
            return forward(*args, **kwargs)

    if "model" in world.streams:
        model.forward = drawn


def text_of(state: Any) -> str | None:
    """Return a random state as hexadecimal text; None for None."""
    return None if state is None else bytes(state.tolist()).hex()


def state_of(text: str | None) -> Any:
    """Return the random state that `text_of` encoded; None for None."""
    import torch

    return None if text is None else torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def mesh_axes(layout: Layout) -> tuple[str, ...]:
    """Return the axes of the mesh: those in use, and shard wherever FSDP2 replicates the model."""
    used = set(layout.in_use)
    if layout.dp > 1 and used & {"tp", "pp"}:
        used.add("shard")
    return tuple(axis for axis in AXES if axis in used)


def _device(torch: Any) -> Any:
    """Return the device of this rank: its own GPU if there are any, otherwise the CPU.

    Raises:
        UsageError: This machine has fewer GPUs than ranks.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    place, count = int(os.environ.get("LOCAL_RANK", "0")), int(torch.cuda.device_count())
    if place >= count > 1:
        raise UsageError(
            f"rank {os.environ.get('RANK', '0')} is number {place} of its machine (LOCAL_RANK, from 0), where {count} "
            f"GPUs are visible; start at most {count} ranks there"
        )
    device = torch.device(
        "cuda", place if count > 1 else 0
    )  # a launcher may make only its own GPU visible to each rank
    torch.cuda.set_device(device)
    return device
