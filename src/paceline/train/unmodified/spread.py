"""All patches of a rank, in the order in which they are applied after the import of torch."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import random
import sys
import time
from types import TracebackType
from typing import Any

from paceline.inprocess import hooks, import_hook
from paceline.train.ranks.open_files import write_files
from paceline.train.unmodified import batch_norm, commands, frameworks, gradients, listings, models, program_end
from paceline.train.unmodified.comparison.drift import Drift, Pieces
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.reading import loaders
from paceline.train.unmodified.state import Refusal, Spread
from paceline.train.unmodified.weights import shards

_LOST = ("closed by peer", "Connection reset", "Broken pipe", "Socket closed", "NCCL", "gloo")
_WAIT_S = 10.0  # for the launcher to end a rank that lost its connection


def begin(torch: Any, place: Any) -> None:
    """Make this process a rank of the program: seed the generators and apply all patches.

    Args:
        torch: The torch module.
        place: The position of the rank: the dict that the launcher (`ranks.run`) passes.
    """
    spread = Spread(torch, place)
    exchange = Exchange(spread)
    torch.manual_seed(spread.seed)
    import_hook.install({"numpy": lambda numpy: _seed_numpy(spread, numpy)})
    random.seed(spread.seed)
    _end_as_one(spread)
    _refuse_own_groups(spread, exchange)
    _hide_our_group(spread)
    gradients.patch(spread, exchange)
    batch_norm.patch(spread, exchange)
    batch_norm.patch_norms(spread)
    drift = Drift(spread, exchange)
    drift.patch()
    loaders.patch(spread, exchange, drift.note_samples)
    pieces = Pieces(spread, exchange)
    pieces.patch()
    shards.patch(spread, pieces.watch)
    calls = models.patch(spread, exchange)
    frameworks.patch(spread)
    listings.leave_samples(lambda: spread.reading)
    commands.leave_samples(lambda: spread.reading)
    atexit.register(_at_exit, spread, exchange, drift, calls)


def _seed_numpy(spread: Spread, numpy: Any) -> None:
    """Seed NumPy's global generator, and each unseeded `default_rng()`, equally on all ranks."""
    numpy.random.seed(spread.seed % 2**32)
    original, made = numpy.random.default_rng, itertools.count()

    @functools.wraps(original)
    def default_rng(seed: Any = None) -> Any:
        return original([spread.seed, next(made)] if seed is None else seed)

    hooks.install(numpy.random, "default_rng", default_rng)


def _end_as_one(spread: Spread) -> None:
    """Patch `sys.excepthook`: a rank that lost its connection waits, so that the failed rank reports its error."""
    earlier = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        spread.failed = True
        if isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST):
            write_files()  # the launcher ends this rank with a signal
            time.sleep(_WAIT_S)
        earlier(kind, error, trace)
        if spread.leads and "mixed torch.Tensor and DTensor" in str(error):
            said = (
                "the weights are sharded, but the program computes something from them itself; use dp instead of shard"
            )
            os.write(2, f"paceline: --layout {spread.layout}: {said}\n".encode())

    hooks.install(sys, "excepthook", hook)


def _refuse_own_groups(spread: Spread, exchange: Exchange) -> None:
    original = spread.torch.distributed.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if not spread.off and not exchange.meeting:
            spread.refuse(
                "the program starts a process group itself, so it already trains in several processes; start it with "
                "`paceline run -- torchrun --nproc-per-node N SCRIPT` without --layout"
            )
        return original(*args, **kwargs)

    owner = spread.torch.distributed.distributed_c10d
    hooks.install(owner, "init_process_group", init_process_group)
    hooks.install(spread.torch.distributed, "init_process_group", init_process_group)


def _hide_our_group(spread: Spread) -> None:
    """Hide Paceline's process group from the program and its libraries; torchmetrics, for example, would sum twice."""
    distributed = spread.torch.distributed
    original = distributed.is_initialized

    @functools.wraps(original)
    def is_initialized() -> bool:
        asks = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        return original() and (spread.off or asks in ("torch", "paceline"))

    hooks.install(
        distributed, "is_initialized", is_initialized
    )  # torch's own modules mostly call it in distributed_c10d


def _at_exit(spread: Spread, exchange: Exchange, drift: Drift, calls: models.SplitCalls) -> None:
    if os.getpid() != exchange.pid:
        return
    exit_code = 0
    if not (spread.refused or spread.failed or spread.off):
        try:
            if drift.end():
                calls.end()
        except Refusal as refusal:
            exit_code = refusal.code  # an exit handler cannot change the exit code otherwise
    if not (spread.off or spread.refused or spread.calls):
        spread.tell("no model was called in training mode, so nothing was split: each rank ran the whole program")
    exchange.part()
    spread.off = True
    calls.forget()
    program_end.prepare(exit_code)
