"""[precision]: autocast around the model, and TF32. The loss is computed outside, in single precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from paceline.inprocess.settings import confirmation, loss_scaling, on_cuda, outermost_forward

_KEY = "precision.autocast"
_HALF = {"bf16": "bfloat16", "fp16": "float16"}
_TF32_FROM = 8  # compute capability


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Apply the [precision] settings of a recipe."""
    if "tf32" in settings:
        _set_tf32(torch, settings["tf32"])
    name = settings.get("autocast")
    if name == "bf16":
        outermost_forward.around(torch, _Autocast(torch, name, lambda module: None))
    elif name == "fp16":
        outermost_forward.around(torch, _Autocast(torch, name, loss_scaling.patch(torch)))


def _set_tf32(torch: Any, wanted: bool) -> None:
    """Set whether fp32 matrices are multiplied in TF32, with the function that also sets torch's older switches."""

    def why_not(_: Any, device: Any) -> str | None:
        major, minor = torch.cuda.get_device_capability(device)
        if major < _TF32_FROM:
            return f"TF32 needs compute capability {_TF32_FROM}.0 or later; this device has {major}.{minor}"
        now = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return None if now == wanted else "the program sets the precision of fp32 matrix products itself"

    if on_cuda.told_at_first_step(torch, "precision.tf32", f"TF32 {'on' if wanted else 'off'}", why_not):
        with warnings.catch_warnings():  # some versions warn about this function
            warnings.simplefilter("ignore")
            torch.set_float32_matmul_precision("high" if wanted else "highest")


class _Autocast:
    """Runs the outermost forwards of models under autocast, and converts their outputs to fp32."""

    def __init__(self, torch: Any, name: str, entered: Callable[[Any], None]) -> None:
        self._torch = torch
        self._name = name
        self._half = getattr(torch, _HALF[name])
        self._entered = entered  # called with each model that is about to compute in half precision

    def __call__(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        parameter = next(module.parameters(), None)
        if parameter is None or parameter.dtype != self._torch.float32:
            return forward(*args, **kwargs)
        kind = parameter.device.type
        if self._torch.is_autocast_enabled(kind):
            confirmation.refused(_KEY, "the program uses autocast itself")
            return forward(*args, **kwargs)
        self._entered(module)
        with self._torch.autocast(kind, dtype=self._half):
            result = forward(*args, **kwargs)
        confirmation.took(_KEY, f"{type(module).__name__} computes in {self._name} on {kind}")
        return self._single(result)

    def _single(self, value: Any) -> Any:
        """Convert the half-precision tensors of a result to single precision."""
        if isinstance(value, self._torch.Tensor):
            return value.float() if value.dtype == self._half else value
        if isinstance(value, dict):
            found = {key: self._single(one) for key, one in value.items()}
            if type(value) is dict:
                return found
            for key, one in found.items():  # a ModelOutput or a similar class: keep the class, change it in place
                value[key] = one
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._single(one) for one in value))
        if isinstance(value, list | tuple):
            return type(value)(self._single(one) for one in value)
        return value
