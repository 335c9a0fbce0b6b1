"""[precision]: autocast around the model, and TF32. The loss stays outside, in single precision."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from paceline.improve.child import held, roots


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Put the settings in force."""
    if "tf32" in settings:
        _set_tf32(torch, settings["tf32"])
    if settings.get("autocast") == "bf16":
        roots.around(torch, _Autocast(torch))


def _set_tf32(torch: Any, wanted: bool) -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 8:
        held.refused("precision.tf32", "there is no device that has it")
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = wanted
    held.took("precision.tf32", f"TF32 {'on' if wanted else 'off'}")


class _Autocast:
    """Runs the outermost forwards of models with parameters under autocast, and hands on what they return in fp32."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._told = threading.Lock()

    def __call__(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        parameter = next(module.parameters(), None)
        if parameter is None or parameter.dtype != self._torch.float32:
            return forward(*args, **kwargs)
        kind = parameter.device.type
        with self._torch.autocast(kind, dtype=self._torch.bfloat16):
            result = forward(*args, **kwargs)
        held.took("precision.autocast", f"{type(module).__name__} computes in bf16 on {kind}")
        return self._single(result)

    def _single(self, value: Any) -> Any:
        """Return a result with its half-precision tensors in single precision."""
        if isinstance(value, self._torch.Tensor):
            return value.float() if value.dtype == self._torch.bfloat16 else value
        if isinstance(value, dict):
            found = {key: self._single(one) for key, one in value.items()}
            if type(value) is dict:
                return found
            for key, one in found.items():  # a ModelOutput and the like: its own class, in place
                value[key] = one
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._single(one) for one in value))
        if isinstance(value, list | tuple):
            return type(value)(self._single(one) for one in value)
        return value
