"""Number formats of a run: fp32, TF32, autocast to bf16 or fp16, and fp8; and the loss scale of fp16.

Parameters stay in fp32 with autocast. The smallest fp16 number is 6e-8: the loss is multiplied by a scale
before backward, and gradients are divided by it afterwards. The scale grows while all gradients are finite and
is halved if one is not (Micikevicius et al. 2018, Mixed Precision Training, section 3.2).

fp8 computes matrix products in eight bits, scaled by the largest value of each tensor, inside autocast to bf16
(Micikevicius et al. 2022, FP8 Formats for Deep Learning); torchao implements it on GPUs with fp8 support.

The norm over all ranks shows whether gradients are finite. Every rank has the same norm, so all ranks skip the
same steps on any layout. torch's GradScaler checks only the gradients of its own rank.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout

_NAMES = ("fp32", "tf32", "bf16", "fp16", "fp8")
_FP8_FROM = (8, 9)  # compute capability
_FP8_OF = 16  # fp8 needs matrix sizes that are multiples of this
_FIRST_SCALE, _LEAST_SCALE, _GROWTH_STEPS = 65536.0, 1.0, 2000


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number formats of a run; table ``[precision]`` of a recipe."""

    autocast: str | None = None  # bf16, fp16
    tf32: bool = False
    fp8: bool = False  # for linear layers, in addition to autocast to bf16

    def __post_init__(self) -> None:
        if self.autocast not in (None, "bf16", "fp16"):
            raise UsageError(f"precision.autocast = {self.autocast!r} is not allowed; it takes 'bf16' or 'fp16'")
        for name in ("tf32", "fp8"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"precision.{name} = {getattr(self, name)!r} is not allowed; it takes true or false")
        if self.fp8 and self.autocast != "bf16":
            raise UsageError(
                "precision.fp8 = true affects only linear layers; set precision.autocast = 'bf16' "
                "for all other operations"
            )

    @staticmethod
    def named(name: str) -> Precision:
        """Return the precision for a name on the command line.

        Raises:
            UsageError: The name is unknown.
        """
        if name not in _NAMES:
            raise UsageError(f"precision {name!r} is not there; choose one of {', '.join(_NAMES)}")
        autocast = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}.get(name)
        return Precision(autocast=autocast, tf32=name == "tf32", fp8=name == "fp8")

    def check(self, layout: Layout) -> None:
        """Check that the layout supports fp8, if it is set.

        Raises:
            UsageError: The layout splits matrices, which fp8 does not support.
        """
        if self.fp8 and not {"dp", "shard"}.issuperset(layout.in_use):
            raise UsageError(
                f"precision fp8 with layout {layout}: fp8 supports only dp and shard, because it needs whole "
                "matrices; use one of these layouts, or bf16"
            )

    def check_device(self, device: Any) -> None:
        """Check that the device and torchao support fp8, if it is set.

        Args:
            device: `torch.device`.

        Raises:
            UsageError: The device or torchao does not support fp8.
        """
        if not self.fp8:
            return
        import torch

        found = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        if found is None or found < _FP8_FROM:
            has = "there is none" if found is None else f"this one has {found[0]}.{found[1]}"
            raise UsageError(
                f"precision fp8 needs a GPU of compute capability {_FP8_FROM[0]}.{_FP8_FROM[1]} or higher, and {has}; "
                f"choose one of {', '.join(name for name in _NAMES if name != 'fp8')}"
            )
        if find_spec("torchao") is None:
            raise UsageError("precision fp8 needs torchao, which is not installed: pip install torchao, or choose bf16")

    def convert(self, model: Any) -> None:
        """Convert the linear layers with suitable sizes to fp8, in place, if fp8 is set.

        Raises:
            UsageError: No linear layer has a suitable size.
        """
        if not self.fp8:
            return
        from torchao.float8 import convert_to_float8_training

        if not any(_fits_fp8(layer, name) for name, layer in model.named_modules() if name):
            raise UsageError(
                f"precision fp8: {type(model).__name__} has no linear layers whose sizes are multiples of {_FP8_OF}; "
                "choose bf16"
            )
        convert_to_float8_training(model, module_filter_fn=_fits_fp8)

    def __str__(self) -> str:
        return "fp8" if self.fp8 else self.autocast or ("tf32" if self.tf32 else "fp32")

    def dtype(self) -> Any:
        """Return the torch dtype of autocast; None without autocast."""
        import torch

        return {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.autocast]

    def context(self, device: str) -> AbstractContextManager[Any]:
        """Return the context of a forward pass on a device type, such as ``cuda``."""
        import torch

        return torch.autocast(device, self.dtype()) if self.autocast else nullcontext()

    def set_matmul(self) -> None:
        """Allow TF32 for fp32 matrix products in this process if `tf32` is set; otherwise change nothing."""
        import torch

        if self.tf32:
            torch.set_float32_matmul_precision("high")

    def scale(self) -> LossScale | None:
        """Return a new loss scale for fp16; None for other formats."""
        return LossScale() if self.autocast == "fp16" else None


def _fits_fp8(layer: Any, name: str) -> bool:
    from torch import nn

    del name
    return isinstance(layer, nn.Linear) and all(size % _FP8_OF == 0 for size in layer.weight.shape)


class LossScale:
    """The factor on the loss for fp16, and the number of skipped steps."""

    def __init__(self) -> None:
        """Start with the initial scale of torch's GradScaler."""
        self.value = _FIRST_SCALE
        self.skipped = 0
        self._finite_steps = 0

    def update(self, finite: bool) -> None:
        """Update the scale after a step.

        Args:
            finite: Whether all gradients of the step were finite.
        """
        if not finite:
            self.value = max(_LEAST_SCALE, self.value / 2)
            self.skipped += 1
            self._finite_steps = 0
            return
        self._finite_steps += 1
        if self._finite_steps == _GROWTH_STEPS:
            self.value *= 2
            self._finite_steps = 0

    def state_dict(self) -> dict[str, float]:
        """Return the scale and the numbers of skipped and finite steps, for a checkpoint."""
        return {"value": self.value, "skipped": self.skipped, "finite_steps": self._finite_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the scale and the numbers of skipped and finite steps from a checkpoint."""
        self.value, self.skipped = float(state["value"]), int(state["skipped"])
        self._finite_steps = int(state["finite_steps"])
