"""In which number format does the program multiply matrices on a GPU? What torch was told, read and never changed."""

from __future__ import annotations

from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.wrappers import stand_in

_autocast: dict[str, str] = {}  # kind of device -> format that autocast was last entered with


def patch(torch: Any) -> None:
    """Remember with which format autocast is entered, wherever the program does that."""

    def entering(args: Any, kwargs: Any) -> None:
        autocast = args[0]
        if autocast._enabled:
            _autocast[autocast.device] = str(autocast.fast_dtype).removeprefix("torch.")

    hooks.replace(torch.autocast, "__enter__", stand_in(torch.autocast.__enter__, "precision probe", entering))


def describe(torch: Any, device: str = "cuda") -> dict[str, Any]:
    """Return what the meta file says of number formats; None where torch does not say."""
    return {
        "autocast": _autocast.get(device),
        "matmul_tf32": _tf32(torch.backends.cuda.matmul),
        "convolution_tf32": _tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn),
    }


def _tf32(new: Any, old: Any = None) -> bool | None:
    """Read the setting as torch has it since 2.9, else as it was before; reading both kinds may be refused."""
    try:
        return bool(new.fp32_precision == "tf32")
    except (AttributeError, RuntimeError):
        pass
    try:
        return bool((old or new).allow_tf32)
    except (AttributeError, RuntimeError):
        return None
