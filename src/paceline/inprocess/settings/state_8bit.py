"""optimizer.state_8bit: store Adam's two averages in 8 bits, with bitsandbytes or torchao.

The program's call creates the library's optimizer instead of torch's, with the same arguments. The optimizer state then
takes a quarter of the memory.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation

_KEY = "optimizer.state_8bit"
_LIBRARIES = {"bitsandbytes": "bitsandbytes.optim", "torchao": "torchao.optim"}
_KINDS = {"Adam": "Adam8bit", "AdamW": "AdamW8bit"}
_KNOWN = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")  # arguments that all of them support


def patch(torch: Any) -> None:
    """Replace the Adam optimizers created from now on."""
    found = [place for name, place in _LIBRARIES.items() if find_spec(name) is not None]
    if not found:
        confirmation.refused(
            _KEY, "the required library is not installed: type `pip install bitsandbytes` or `pip install torchao`"
        )
        return
    for kind, name in _KINDS.items():
        _replace(torch, getattr(torch.optim, kind), found[0], name)


def _replace(torch: Any, kind: Any, library: str, name: str) -> None:
    """Make calls of a class create the library's optimizer; derived classes stay unchanged."""
    signature = inspect.signature(kind.__init__)

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = _arguments(signature, args, kwargs) if cls is kind else None
        if given is None:
            return object.__new__(cls)
        strange = [key for key, value in given.items() if key not in _KNOWN and str(value) not in ("None", "False")]
        if strange:
            confirmation.refused(_KEY, f"{name} of {library} does not support {', '.join(strange)}")
            return object.__new__(cls)
        if not torch.cuda.is_initialized():  # the library's import would use CUDA
            confirmation.refused(_KEY, "the program creates its optimizer before it uses CUDA")
            return object.__new__(cls)
        made = getattr(import_module(library), name)(**{key: given[key] for key in _KNOWN if key in given})
        confirmation.took(_KEY, f"{library}.{name} instead of {kind.__name__}")
        return made

    hooks.install(kind, "__new__", __new__)


def _arguments(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Return an optimizer's arguments by name, or None if it is created in another way, such as by copying."""
    try:
        return dict(list(signature.bind(None, *args, **kwargs).arguments.items())[1:])
    except TypeError:
        return None
