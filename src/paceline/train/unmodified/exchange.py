"""Collectives of the ranks, with gradients: gathering the rows of a batch, and sums of tensors over ranks.

Outside of models, every rank has whole tensors, and their gradients are the same on each rank. Within a model, a rank
has its part of the rows. Gradients there are n times those of one process, so that their mean over the n ranks is the
sum over all rows. A gradient computed outside of models is the same on each rank, so its mean is the gradient itself.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.inprocess.other_threads import StackEntry, stack_of
from paceline.train.ranks.agreement import bytes_of
from paceline.train.ranks.world import devices_differ
from paceline.train.unmodified.account import TAG_BYTES, Account, tags_of, with_tag
from paceline.train.unmodified.call import bounds, digest, sizes
from paceline.train.unmodified.state import Spread, is_own_file, plain_settings

_MOST_BYTES_WITH_TAG = 1 << 20
_EVERY_S = 1.0
_FEWEST = 3  # samples without progress before a rank publishes its wait
_OLD_S = 5.0  # age at which the wait of another rank no longer counts
_MOST_AT_OTHER_LINES = 12  # samples; ranks that wait at different lines never meet
_MOST_AT_ONE_LINE = 300  # samples; one large exchange may take this long
_WAITS_IN = (
    "torch.distributed",
    *(f"paceline.train.unmodified.{name}" for name in ("commands", "exchange", "gradients", "comparison.drift")),
)
_MOST_LINES = 8
_DEEP = 200  # calls of a stack that are read
_MOST_BUFFER_ELEMENTS = 1 << 15
_NAMES_OF_THREADS = ("pt_gloo", "gloo_")
_MOST_THREAD_CHECKS = 2000
_ASLEEP_CHECKS = 4  # consecutive checks in which all threads sleep
_BETWEEN_THREADS_S = 0.005


class Exchange:
    """The exchanges of this rank with all other ranks.

    Args:
        spread: The state of this rank.
    """

    def __init__(self, spread: Spread) -> None:
        self.spread, self.torch, self.pid = spread, spread.torch, os.getpid()
        self.account = Account(spread)
        self.begun_count = 0  # exchanges that this rank has started
        self.meeting = False
        self.groups: tuple[Any, ...] = ()  # groups of weights of the model that is called
        self.begun: Callable[[tuple[Any, ...]], None] = lambda groups: None  # called when backward reaches a call
        self._later: Any = None
        self._beside: Any = None
        self._functions = _functions(self)

    def meet(self) -> Any:
        """Return `torch.distributed`; the first call creates the process group of all ranks."""
        distributed = self.torch.distributed
        self.begun_count += 1
        if not distributed.is_initialized():
            spread, self.meeting = self.spread, True
            store = distributed.FileStore(os.path.join(spread.folder, "store"), spread.ranks)
            device = "cuda" if self.torch.cuda.is_available() else "cpu"
            wrong = devices_differ(store, spread.rank, spread.ranks, device)
            if wrong:
                spread.refuse(wrong)
            backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            hook = sys.excepthook  # torch replaces the hook by one that writes "[rank0]:" before each line of an error
            distributed.init_process_group(backend, store=store, rank=spread.rank, world_size=spread.ranks)
            sys.excepthook, self.meeting = hook, False
            watch_waiting(spread, lambda: self.begun_count)
        return distributed

    def part(self) -> None:
        """Destroy the process group, if there is one."""
        if self.torch.distributed.is_initialized():
            with suppress(RuntimeError):
                self.torch.distributed.destroy_process_group()
            wait_for_threads()

    def all_rows(self, part: Any, parts: Sequence[int], *, of_call: bool = False) -> Any:
        """Gather the rows of all ranks, without gradients.

        Args:
            part: The rows of this rank, of shape (``parts[rank]``, ...).
            parts: The number of rows of each rank.
            of_call: Whether the rows are the output of a model. The ranks then also check that all outputs come from
                the same call.

        Returns:
            A tensor of shape (``sum(parts)``, ...).
        """
        torch, distributed, most = self.torch, self.meet(), max(parts)
        own = part.detach().contiguous()
        row_bytes = own[:1].numel() * own.element_size()
        if not row_bytes:
            return own.new_empty((sum(parts), *own.shape[1:]))
        flat = bytes_of(own)
        padded = torch.cat([flat, flat.new_zeros((most - own.shape[0]) * row_bytes)]) if own.shape[0] < most else flat
        padded, head = self._with_tag(padded) if of_call else (padded, 0)
        found = flat.new_empty(len(parts) * (head + most * row_bytes))
        gather = (
            getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        )  # from torch 2.13, and before
        gather(found, padded)
        if head:
            pieces = found.view(len(parts), head + most * row_bytes)
            self.account.check_tags(tags_of(pieces))
            found = pieces[:, head:].flatten()
        if min(parts) < most:
            pieces = found.view(len(parts), most * row_bytes)
            found = torch.cat([pieces[rank, : size * row_bytes] for rank, size in enumerate(parts)])
        # No view: torch refuses changes in place of a view that an autograd function returns.
        shape = (sum(parts), *own.shape[1:])
        return own.new_empty(0).set_(found.untyped_storage(), 0, shape, torch.empty(shape, device="meta").stride())

    def _with_tag(self, flat: Any) -> tuple[Any, int]:
        """Return bytes with the digest of calls in front, and the size of the digest in bytes.

        With large tensors the digest is exchanged separately, and on GPUs not at all; the size is then 0.
        """
        if flat.device.type != "cpu":
            return flat, 0
        if flat.numel() <= _MOST_BYTES_WITH_TAG:
            return with_tag(self.torch, flat, self.account.tag()), TAG_BYTES
        own = self.torch.tensor([[self.account.tag()]], dtype=self.torch.int64)
        self.account.check_tags(self.all_rows(own, [1] * self.spread.ranks).flatten().tolist())
        return flat, 0

    def objects(self, part: Any) -> list[Any]:
        """Gather an object that can be pickled from each rank; returns one entry for each rank."""
        found: list[Any] = [None] * self.spread.ranks
        self.meet().all_gather_object(found, part)
        return found

    def check_call(self, module: Any, *, draws: bool) -> None:
        """End the program if a call, a setting or a buffer of its model differs between ranks, before a comparison.

        Args:
            module: The model.
            draws: Whether the model draws random numbers. Its buffers are then not compared.
        """
        trained = [name for name, weight in module.named_parameters() if weight.requires_grad]
        call = (self.account.ordinal(module), module.training, self.torch.is_grad_enabled(), trained)
        settings = [
            (name, f"{value:.3g}" if isinstance(value, float) else value)
            for part in module.modules()
            for name, value in plain_settings(part).items()
        ]
        plain = [each for each in module.buffers() if type(each) is self.torch.Tensor and each.device.type == "cpu"]
        buffers = [digest(self.torch, each) for each in plain if not draws and each.numel() <= _MOST_BUFFER_ELEMENTS]
        own = [zlib.crc32(repr(each).encode()) for each in (call, (settings, buffers))]
        self.account.check([[first, 0, 0, last] for first, last in self.objects(own)])

    def agree(self, numbers: Sequence[int]) -> bool:
        """Return whether all ranks pass the same integers, each below 2**63; all ranks must pass equally many."""
        own = self.torch.tensor([list(numbers)], dtype=self.torch.int64)
        return bool((self.all_rows(own, [1] * self.spread.ranks) == own).all())

    def sum_(self, value: Any) -> Any:
        """Sum a tensor over all ranks in place, and return the tensor."""
        self.meet().all_reduce(value)
        return value

    def add_up_later(self, value: Any) -> Any:
        """Start to sum a tensor over all ranks in place, in a separate process group; return torch's work handle."""
        distributed = self.meet()
        if self._later is None:
            self._later = distributed.new_group()
        return distributed.all_reduce(value, group=self._later, async_op=True)

    def gather_later(self, value: Any) -> tuple[Any, Any]:
        """Start to gather a 1-D CPU tensor from all ranks; return torch's work handle and the tensor for the result."""
        distributed = self.meet()
        if self._beside is None:
            self._beside = distributed.new_group(backend="gloo")
        found = value.new_empty(self.spread.ranks * value.numel())
        gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        return gather(found, value, group=self._beside, async_op=True), found

    def whole(self, part: Any, parts: Sequence[int]) -> Any:
        """Gather the rows of all ranks; in the backward pass each rank gets the gradient of its rows.

        Args:
            part: The rows of this rank.
            parts: The number of rows of each rank.
        """
        return self._functions["whole"].apply(part, tuple(parts))

    def own_rows(self, whole: Any, ranks: int) -> Any:
        """Return this rank's rows of a tensor; in the backward pass each rank gets the gradients of all rows."""
        low, high = bounds(whole.shape[0], ranks, self.spread.rank)
        if whole.requires_grad and self.torch.is_grad_enabled():
            return self._functions["slice"].apply(whole, tuple(sizes(whole.shape[0], ranks)))
        return whole[low:high]

    def shared(self, value: Any) -> Any:
        """Return an input that is the same on all ranks; in the backward pass its gradient is summed over all rows."""
        if value.requires_grad and self.torch.is_grad_enabled():
            return self._functions["shared"].apply(value)
        return value

    def mean(self, value: Any, share: Any) -> Any:
        """Return the sum over ranks of a tensor times the share of each rank; gradients flow to each rank's tensor."""
        return self._functions["mean"].apply(value, share)

    def total(self, value: Any) -> Any:
        """Return the sum of a tensor over ranks, for use within a model; its gradient is summed over ranks too."""
        return self._functions["total"].apply(value)


def _functions(exchange: Exchange) -> dict[str, Any]:
    """Return the differentiable exchanges by name, as classes made once torch is imported.

    The backward pass of each exchange calls other exchanges, so that gradients can be differentiated again.
    """
    functions: dict[str, Any] = {}
    functions |= {**_of_inputs(exchange, functions), **_of_outputs(exchange, functions)}
    return functions


def _of_inputs(exchange: Exchange, functions: dict[str, Any]) -> dict[str, Any]:
    from torch.autograd import Function

    spread = exchange.spread

    class Shared(Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value.view_as(value)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return functions["mean"].apply(gradient, 1.0) / spread.ranks

    return {"shared": Shared}


def _of_outputs(exchange: Exchange, functions: dict[str, Any]) -> dict[str, Any]:
    from torch.autograd import Function

    spread = exchange.spread

    class Whole(Function):
        @staticmethod
        def forward(ctx: Any, part: Any, parts: tuple[int, ...]) -> Any:
            ctx.parts, ctx.groups = parts, exchange.groups
            return exchange.all_rows(part, parts, of_call=not exchange.spread.backward)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            exchange.account.note_gradient(gradient)
            exchange.begun(ctx.groups)
            if exchange.torch.is_grad_enabled():
                return functions["slice"].apply(gradient, ctx.parts) * spread.ranks, None
            low = sum(ctx.parts[: spread.rank])
            return gradient[low : low + ctx.parts[spread.rank]] * spread.ranks, None

    class Slice(Function):
        @staticmethod
        def forward(ctx: Any, whole: Any, parts: tuple[int, ...]) -> Any:
            ctx.parts = parts
            low = sum(parts[: spread.rank])
            return whole[low : low + parts[spread.rank]].clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return functions["whole"].apply(gradient, ctx.parts) / spread.ranks, None

    class Mean(Function):
        @staticmethod
        def forward(ctx: Any, value: Any, share: Any) -> Any:
            ctx.share, ctx.groups = share, exchange.groups
            return exchange.sum_((value * share).contiguous())

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            exchange.account.note_gradient(gradient)
            exchange.begun(ctx.groups)
            given = functions["shared"].apply(gradient) if exchange.torch.is_grad_enabled() else gradient
            return given * ctx.share * spread.ranks, None

    class Total(Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return exchange.sum_(value.contiguous().clone())

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return functions["total"].apply(gradient)

    return {"whole": Whole, "slice": Slice, "mean": Mean, "total": Total}


def wait_for_threads() -> None:
    """Wait up to about ten seconds until torch's communication threads sleep.

    After an exchange such a thread releases its tensors, for which it needs Python. If Python ends at this moment, the
    process aborts.
    """
    asleep = 0
    for _ in range(_MOST_THREAD_CHECKS):  # a count, not a deadline: the machine may be suspended meanwhile
        time.sleep(_BETWEEN_THREADS_S)
        asleep = asleep + 1 if all(_sleeps(task) for task in Path("/proc/self/task").glob("*")) else 0
        if asleep == _ASLEEP_CHECKS:
            return


def _sleeps(task: Path) -> bool:
    """Return whether a thread of this process sleeps, is gone, or is none of torch's that exchange tensors."""
    try:
        name, _, fields = (task / "stat").read_text().partition(" (")[2].rpartition(") ")
    except OSError:
        return True
    return not name.startswith(_NAMES_OF_THREADS) or fields.startswith("S")


@dataclass(frozen=True)
class Wait:
    """The place where the main thread of a rank waits in an exchange.

    Attributes:
        lines: The program's lines on the stack, such as ``train.py:12``, innermost first.
        exchange: The number of exchanges that the rank has started, and the names of the functions on the stack.
        samples: The number of consecutive samples, one per second, in which the thread did not move.
        at: The time of the last sample, in seconds since the epoch.
    """

    lines: tuple[str, ...]
    exchange: str
    samples: int
    at: float

    @property
    def line(self) -> str:
        """The program's own source line at which the rank waits, such as ``train.py:12``, for a message."""
        return self.lines[0] if self.lines else "the end of the program"


def watch_waiting(spread: Spread, exchanges: Callable[[], int]) -> None:
    """Start a thread that ends the program if the ranks are in a deadlock.

    Args:
        spread: The state of this rank.
        exchanges: Returns the number of exchanges that this rank has started.
    """
    threading.Thread(target=_Watch(spread, exchanges).run, daemon=True, name="paceline-waiting").start()


def verdict(waits: Sequence[Wait | None], now_s: float) -> str:
    """Return a message if the ranks are in a deadlock, else an empty string.

    Args:
        waits: The wait of each rank; None for a rank that does not wait.
        now_s: The current time, in seconds since the epoch.
    """
    known = [wait for wait in waits if wait is not None and now_s - wait.at < _OLD_S]
    if len(known) < len(waits):
        return ""
    apart = len({(wait.lines, wait.exchange) for wait in known}) > 1
    if min(wait.samples for wait in known) < (_MOST_AT_OTHER_LINES if apart else _MOST_AT_ONE_LINE):
        return ""
    places = ", ".join(f"rank {rank} at {wait.line}" for rank, wait in enumerate(known))
    return (
        f"the ranks wait for each other without end ({places}); the program went another way on one of them, because a "
        "decision depends on the time, the process or unseeded random numbers; make it the same on all ranks"
    )


class _Watch:
    """Samples the main thread of this rank once a second, and ends the program in a deadlock."""

    def __init__(self, spread: Spread, exchanges: Callable[[], int]) -> None:
        self._spread, self._exchanges = spread, exchanges
        self._main, self._pid = threading.main_thread(), os.getpid()
        place = os.path.join(spread.folder, "waits")
        self._store = spread.torch.distributed.FileStore(place, spread.ranks)  # ranks redirect plain files
        self._before: Any = None
        self._samples = 0

    def run(self) -> None:
        """Sample the main thread until the program ends."""
        while os.getpid() == self._pid and self._main.is_alive():
            time.sleep(_EVERY_S)
            with suppress(OSError, ValueError, RuntimeError):
                self._look()

    def _look(self) -> None:
        wait = self._waits()
        if wait is None or wait.samples < _FEWEST:
            return
        self._store.set(str(self._spread.rank), json.dumps(asdict(wait)))
        why = verdict([self._read(rank) for rank in range(self._spread.ranks)], time.time())
        if why:
            time.sleep(0 if self._spread.leads else 2 * _EVERY_S)  # rank 0 prints the message first
            self._spread.refuse(why)

    def _waits(self) -> Wait | None:
        calls = stack_of(self._main.ident or 0, _DEEP)
        if not calls or self._spread.off or not _is_exchange(calls):
            self._before = None
            return None
        here = (calls[0].moment, _cpu_ticks(self._main.native_id) // 10)
        self._samples = self._samples + 1 if here == self._before else 0
        self._before = here
        names = " ".join(call.code.co_name for call in calls[:_MOST_LINES])
        return Wait(_lines(calls), f"{self._exchanges()} {names}", self._samples, time.time())

    def _read(self, rank: int) -> Wait | None:
        if not self._store.check([str(rank)]):
            return None
        found = json.loads(self._store.get(str(rank)))
        return Wait(tuple(found["lines"]), str(found["exchange"]), int(found["samples"]), float(found["at"]))


def _is_exchange(calls: Sequence[StackEntry]) -> bool:
    """Return whether the innermost call, apart from calls of the recorder, is an exchange with other ranks."""
    others = (call.module for call in calls if not call.module.startswith("paceline.inprocess"))
    return next(others, "").startswith(_WAITS_IN)


def _lines(calls: Sequence[StackEntry]) -> tuple[str, ...]:
    own = [call for call in calls if is_own_file(call.code.co_filename)]
    return tuple(f"{os.path.basename(call.code.co_filename)}:{call.line}" for call in own[:_MOST_LINES])


def _cpu_ticks(thread: int | None) -> int:
    """Return the CPU time of a thread in clock ticks, or 0 if it is unknown."""
    try:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
