"""[debug]: turn off debug settings of torch and CUDA that the program or its environment turns on."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation, on_cuda

_BLOCKING = "CUDA_LAUNCH_BLOCKING"
_LEVEL = "TORCH_DISTRIBUTED_DEBUG"


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Apply the [debug] settings of a recipe, whose values are all false: a recipe turns no debug setting on."""
    if "anomaly_detection" in settings:
        _keep_off(torch, "set_anomaly_enabled", "debug.anomaly_detection", "anomaly detection stays off")
    if "deterministic_algorithms" in settings:
        what = "deterministic algorithms stay off"
        _keep_off(torch, "use_deterministic_algorithms", "debug.deterministic_algorithms", what)
    if "distributed_debug" in settings:
        _lower_distributed_debug(torch)
    if "launch_blocking" in settings:
        _unset_launch_blocking(torch)


def _keep_off(torch: Any, function: str, key: str, what: str) -> None:
    """Replace ``torch.<function>(mode, ...)``: a call that would turn the mode on turns it off."""
    original = getattr(torch, function)

    @functools.wraps(original)
    def keep_off(mode: bool, *args: Any, **kwargs: Any) -> Any:
        if mode:
            confirmation.took(key, what)
        return original(False, *args, **kwargs)

    hooks.install(torch, function, keep_off)


def _lower_distributed_debug(torch: Any) -> None:
    """Lower the debug level of torch.distributed that the environment has set. Messages of level INFO stay."""
    key, distributed = "debug.distributed_debug", torch.distributed
    if not distributed.is_available() or distributed.get_debug_level() != distributed.DebugLevel.DETAIL:
        confirmation.refused(key, f"{_LEVEL}=DETAIL is not set")
        return
    distributed.set_debug_level(distributed.DebugLevel.INFO)
    os.environ[_LEVEL] = "INFO"  # for processes that start later
    confirmation.took(key, f"{_LEVEL} is INFO instead of DETAIL")


def _unset_launch_blocking(torch: Any) -> None:
    """Remove CUDA_LAUNCH_BLOCKING from the environment before CUDA starts and reads it."""

    def why_not(optimizer: Any, device: Any) -> str | None:
        return f"the program sets {_BLOCKING} itself" if _BLOCKING in os.environ else None

    what = "the CPU does not wait for each GPU kernel"
    if on_cuda.told_at_first_step(torch, "debug.launch_blocking", what, why_not):
        os.environ.pop(_BLOCKING, None)
