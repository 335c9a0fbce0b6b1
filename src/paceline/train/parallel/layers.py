"""layers: one process has its layers on several devices, one part after the other. For a model that one cannot hold.

Parts are cut where the dearest is cheapest, and activations are moved to the device of the next part; backward moves
their gradients back. Each device keeps 1/n of all that belongs to layers, and works 1/n of the time: where there may be
several processes, `pp` works on all at once. Needs no `torchrun`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train.parallel.balance import counted, cut


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Where layers are; table ``[layers]`` of a recipe."""

    devices: Sequence[str] = ()  # such as cuda:0 and cuda:1, in the order of the layers; none: all on one

    def __post_init__(self) -> None:
        if isinstance(self.devices, str) or not all(isinstance(each, str) for each in self.devices):
            raise UsageError(
                f'layers.devices = {self.devices!r} is not allowed; it takes a list such as ["cuda:0", "cuda:1"]'
            )
        if len(self.devices) == 1:
            raise UsageError(f"layers.devices = {self.devices!r}: give at least two devices, or leave out [layers]")

    def check(self, layout: Layout) -> None:
        """See that there is one process.

        Raises:
            UsageError: The layout has several ranks.
        """
        if self.devices and layout.in_use:
            raise UsageError(
                f"layers.devices with layout {layout}: [layers] is for one process; set pp={len(self.devices)} in the "
                "layout instead, or leave out the layout"
            )


def places(devices: Sequence[str]) -> list[Any]:
    """Return the devices as torch knows them.

    Raises:
        UsageError: One of them is not there.
    """
    import torch

    found = []
    for name in devices:
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise UsageError(f"layers.devices: {name!r} is no device ({error}); write cuda:0 or cpu") from None
        there = torch.cuda.device_count()
        if device.type == "cuda" and (device.index or 0) >= there:
            raise UsageError(f"layers.devices: {name!r} is not there; torch sees {there} CUDA devices")
        found.append(device)
    return found


def spread(model: Any, devices: Sequence[Any]) -> None:
    """Put the layers of a model on devices, in place; its output is on the last one.

    Args:
        model: An `nn.Sequential` of its layers.
        devices: `torch.device`, in the order of the layers.

    Raises:
        UsageError: It is no row of layers, has too few, or layers of two devices share parameters.
    """
    from torch import nn

    if not isinstance(model, nn.Sequential):
        raise UsageError(
            f"layers.devices: {type(model).__name__} is not an nn.Sequential, so it is unknown where to split "
            f"it; write "
            "it as a Sequential of its layers, or leave [layers] out"
        )
    layers = list(model)
    if len(layers) < len(devices):
        raise UsageError(
            f"layers.devices: {len(devices)} devices for a model of {len(layers)} layers; give at most one "
            f"device per layer"
        )
    parts = [[layers[i] for i in part] for part in cut([counted(layer) for layer in layers], len(devices))]
    _check_apart(parts)
    for part, device in zip(parts, devices, strict=True):
        for layer in part:
            layer.to(device)
        part[0].register_forward_pre_hook(partial(_moved, device))


def _moved(device: Any, layer: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Bring what a part is called with to its device."""
    del layer
    return tuple(value.to(device, non_blocking=True) for value in inputs)


def _check_apart(parts: Sequence[Sequence[Any]]) -> None:
    owner: dict[int, int] = {}
    for number, part in enumerate(parts):
        for layer in part:
            for name, parameter in layer.named_parameters():
                if owner.setdefault(id(parameter), number) != number:
                    raise UsageError(
                        f"layers.devices: {name} is shared by parts {owner[id(parameter)]} and {number}, so it "
                        f"would be "
                        "on two devices; give each layer its own parameters"
                    )
