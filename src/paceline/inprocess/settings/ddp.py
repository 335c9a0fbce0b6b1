"""[ddp]: how DistributedDataParallel exchanges gradients."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import comm_hook, confirmation, no_sync

_SEARCHES = "find_unused_parameters"
_USUAL = {"bucket_cap_mb": (None, 25), "static_graph": (False,), "gradient_as_bucket_view": (False,)}


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Apply the [ddp] settings of a recipe."""
    wanted = {key: settings[key] for key in _USUAL if key in settings}
    if wanted or _SEARCHES in settings:
        _patch_init(torch.nn.parallel.DistributedDataParallel, wanted, searches=settings.get(_SEARCHES, True))
    if "comm_hook" in settings:
        comm_hook.patch(torch, settings["comm_hook"])
    if settings.get("no_sync"):
        no_sync.patch(torch)


def _search_no_more(arguments: dict[str, Any]) -> None:
    """Switch off the search for unused parameters in the DDP arguments of one model."""
    if not arguments.pop(_SEARCHES, False):
        confirmation.refused(f"ddp.{_SEARCHES}", "the program does not pass find_unused_parameters=True")
        return
    confirmation.took(f"ddp.{_SEARCHES}", "DistributedDataParallel does not search for unused parameters")


def _patch_init(kind: Any, wanted: Mapping[str, Any], *, searches: bool) -> None:
    """Change the arguments of every DDP model created from now on; the program's own values are kept.

    Args:
        kind: The class.
        wanted: The arguments to set.
        searches: Whether models may search for unused parameters if the program requests it.
    """
    original = kind.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:  # the program's own error, which torch reports
            original(self, *args, **kwargs)
            return
        for key, value in wanted.items():
            given = bound.arguments.get(key, _USUAL[key][0])
            if given in _USUAL[key]:
                bound.arguments[key] = value
                confirmation.took(f"ddp.{key}", f"DistributedDataParallel({key}={value})")
            else:
                confirmation.refused(f"ddp.{key}", f"the program passes {key}={given} itself")
        if not searches:
            _search_no_more(bound.arguments)
        original(*bound.args, **bound.kwargs)

    hooks.install(kind, "__init__", __init__)
