"""What is patched in a rank, and in which order? Called once, when torch has been imported."""

from __future__ import annotations

import atexit
import functools
import os
import random
import sys
import time
from types import TracebackType
from typing import Any

from paceline.observe.probe import lazy
from paceline.train.unmodified import batch_norm, frameworks, gradients, loaders, models, norms, shards
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.state import Spread

_LOST = ("closed by peer", "Connection reset", "Broken pipe", "Socket closed", "NCCL", "gloo")
_WAIT_S = 10.0  # for the launcher to end a rank that has lost another


def begin(torch: Any, place: Any) -> None:
    """Make this process a rank of the program."""
    spread = Spread(torch, place)
    exchange = Exchange(spread)
    torch.manual_seed(spread.seed)
    lazy.install({"numpy": lambda numpy: numpy.random.seed(spread.seed % 2**32)})
    random.seed(spread.seed)
    _end_as_one(spread)
    _refuse_own_groups(spread, exchange)
    _hide_our_group(spread)
    gradients.patch(spread, exchange)
    batch_norm.patch(spread, exchange)
    norms.patch(spread)
    loaders.patch(spread, exchange)
    shards.patch(spread)
    models.patch(spread, exchange)
    frameworks.patch(spread)
    atexit.register(_at_exit, spread, exchange)


def _end_as_one(spread: Spread) -> None:
    """Let a rank that has lost another wait for its end: the one that failed says why."""
    earlier = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST):
            time.sleep(_WAIT_S)
        earlier(kind, error, trace)
        if spread.leads and "mixed torch.Tensor and DTensor" in str(error):
            said = (
                "the weights are split, and what the program computes of them itself is not; use dp in place of shard"
            )
            os.write(2, f"paceline: --layout {spread.layout}: {said}\n".encode())

    sys.excepthook = hook


def _refuse_own_groups(spread: Spread, exchange: Exchange) -> None:
    original = spread.torch.distributed.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if not spread.off and not exchange.meeting:
            spread.refuse(
                "the program starts a process group itself, so it is for several processes already; start it by "
                "`paceline run -- torchrun --nproc-per-node N SCRIPT` without --layout"
            )
        return original(*args, **kwargs)

    owner = spread.torch.distributed.distributed_c10d
    owner.init_process_group = spread.torch.distributed.init_process_group = init_process_group


def _hide_our_group(spread: Spread) -> None:
    """Have the program and its libraries (torchmetrics) see one process, so that they add up nothing once more."""
    distributed = spread.torch.distributed
    original = distributed.is_initialized

    @functools.wraps(original)
    def is_initialized() -> bool:
        asks = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        return original() and (spread.off or asks in ("torch", "paceline"))

    distributed.is_initialized = is_initialized  # torch's own modules ask in distributed_c10d for the most part


def _at_exit(spread: Spread, exchange: Exchange) -> None:
    if os.getpid() != exchange.pid:
        return
    if not (spread.off or spread.refused or spread.calls):
        spread.tell("no model was called to train, so nothing was split: each rank ran the whole program")
    exchange.part()
