"""In which formats is computed, and how does fp16 keep small gradients?

fp32, TF32 products of matrices, or autocast to bf16 or fp16 with parameters kept in fp32. fp16 ends at 6e-8: the
loss is multiplied by a scale before backward and gradients are divided by it after. The scale grows while all is finite
and is halved where something is not (Micikevicius et al. 2018, Mixed Precision Training, section 3.2).

Whether gradients are finite is read from their norm over all ranks, which every rank has: none can take a step that
another one skips, on any layout. torch's GradScaler looks at the gradients of its own rank.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError

_NAMES = ("fp32", "tf32", "bf16", "fp16")
_FIRST_SCALE, _LEAST_SCALE, _GROWTH_STEPS = 65536.0, 1.0, 2000


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Formats of a run; table ``[precision]`` of a recipe."""

    autocast: str | None = None  # bf16, fp16
    tf32: bool = False

    def __post_init__(self) -> None:
        if self.autocast not in (None, "bf16", "fp16"):
            raise UsageError(f"precision.autocast = {self.autocast!r} is not allowed; it takes 'bf16' or 'fp16'")
        if not isinstance(self.tf32, bool):
            raise UsageError(f"precision.tf32 = {self.tf32!r} is not allowed; it takes true or false")

    @staticmethod
    def named(name: str) -> Precision:
        """Return what a name on the command line stands for.

        Raises:
            UsageError: There is no such precision.
        """
        if name not in _NAMES:
            raise UsageError(f"precision {name!r} is not there; choose one of {', '.join(_NAMES)}")
        return Precision(autocast=name if name in ("bf16", "fp16") else None, tf32=name == "tf32")

    def __str__(self) -> str:
        return self.autocast or ("tf32" if self.tf32 else "fp32")

    def dtype(self) -> Any:
        """Return the torch dtype of autocast; None without."""
        import torch

        return {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.autocast]

    def context(self, device: str) -> AbstractContextManager[Any]:
        """Return the context of a forward pass on a kind of device, such as ``cuda``."""
        import torch

        return torch.autocast(device, self.dtype()) if self.autocast else nullcontext()

    def set_matmul(self) -> None:
        """Let products of fp32 matrices use TF32 in this process, if asked; else they stay as the script has them."""
        import torch

        if self.tf32:
            torch.set_float32_matmul_precision("high")

    def scale(self) -> LossScale | None:
        """Return the scale of the loss for fp16; None where none is needed."""
        return LossScale() if self.autocast == "fp16" else None


class LossScale:
    """The factor on the loss, and how many steps were skipped."""

    def __init__(self) -> None:
        """Begin where torch's GradScaler begins."""
        self.value = _FIRST_SCALE
        self.skipped = 0
        self._finite_steps = 0

    def update(self, finite: bool) -> None:
        """Take note of a step."""
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
        """Return what a checkpoint keeps."""
        return {"value": self.value, "skipped": self.skipped, "finite_steps": self._finite_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint."""
        self.value, self.skipped = float(state["value"]), int(state["skipped"])
        self._finite_steps = int(state["finite_steps"])
