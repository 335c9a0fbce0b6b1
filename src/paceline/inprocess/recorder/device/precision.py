"""The number format of matrix products on a GPU, read from torch's settings. The settings are never changed."""

from __future__ import annotations

from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.wrappers import stand_in

_autocast: dict[str, str] = {}  # device type -> format of the last autocast


def patch(torch: Any) -> None:
    """Record the format of each autocast that the program enters."""

    def entering(args: Any, kwargs: Any) -> None:
        autocast = args[0]
        if autocast._enabled:
            _autocast[autocast.device] = str(autocast.fast_dtype).removeprefix("torch.")

    hooks.replace(torch.autocast, "__enter__", stand_in(torch.autocast.__enter__, "precision probe", entering))


def describe(torch: Any, device: str = "cuda") -> dict[str, Any]:
    """Return the entries of the meta file about number formats; None for an unknown format."""
    return {
        "autocast": _autocast.get(device),
        "matmul_tf32": _tf32(torch.backends.cuda.matmul),
        "convolution_tf32": _tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn),
    }


def _tf32(new: Any, old: Any = None) -> bool | None:
    """Read the TF32 setting of torch 2.9 and later, or else the older setting; torch can refuse to use both."""
    try:
        return bool(new.fp32_precision == "tf32")
    except (AttributeError, RuntimeError):
        pass
    try:
        return bool((old or new).allow_tf32)
    except (AttributeError, RuntimeError):
        return None
