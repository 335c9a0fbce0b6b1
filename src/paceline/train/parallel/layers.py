"""One process with its layers on several devices, for a model that does not fit on one device.

The layers are cut into parts so that the most expensive part costs as little as possible. Activations move to the
device of the next part, and backward moves their gradients back. Each device keeps 1/n of the layers' memory, and works
1/n of the time: with several processes, `pp` keeps all devices busy. No `torchrun` is needed.
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
    """The devices of the layers; table ``[layers]`` of a recipe."""

    devices: Sequence[
        str
    ] = ()  # such as cuda:0 and cuda:1, in the order of the layers; empty: all layers on one device

    def __post_init__(self) -> None:
        if isinstance(self.devices, str) or not all(isinstance(each, str) for each in self.devices):
            raise UsageError(
                f'layers.devices = {self.devices!r} is not allowed; it takes a list such as ["cuda:0", "cuda:1"]'
            )
        if len(self.devices) == 1:
            raise UsageError(f"layers.devices = {self.devices!r}: give at least two devices, or leave out [layers]")

    def check(self, layout: Layout) -> None:
        """Check that the run has one process.

        Raises:
            UsageError: The layout has several ranks.
        """
        if self.devices and layout.in_use:
            raise UsageError(
                f"layers.devices with layout {layout}: [layers] is for one process; set pp={len(self.devices)} in the "
                "layout instead, or leave out the layout"
            )


def places(devices: Sequence[str]) -> list[Any]:
    """Return the named devices as `torch.device`.

    Raises:
        UsageError: A device does not exist.
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
    """Move the layers of a model to several devices, in place. The output of the model is on the last device.

    Args:
        model: An `nn.Sequential` of its layers.
        devices: `torch.device`, in the order of the layers.

    Raises:
        UsageError: The model is not an `nn.Sequential`, has fewer layers than devices, or layers on two devices
            share parameters.
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
    """Return the inputs of a layer moved to its device."""
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
