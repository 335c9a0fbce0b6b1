"""What do ranks exchange? Rows, so that each has them all, and numbers that are added up; with their gradients.

What all ranks have is whole, and so is its gradient, the same on each. Within a model a rank has a part of the rows.
Gradients there are n times those of one process, so that their mean over the n ranks is the sum over all rows; what
is computed on whole values on every rank has the same gradient on each, and so the same mean.
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
from types import FrameType
from typing import Any

from paceline.train.unmodified.account import TAG_BYTES, Account, tags_of, with_tag
from paceline.train.unmodified.rows import bounds, sizes
from paceline.train.unmodified.state import Spread, is_own_file
from paceline.train.world import devices_differ

_MOST_BYTES_WITH_TAG = 1 << 20
_EVERY_S = 1.0
_FEWEST = 3  # samples, before a rank tells the others
_OLD_S = 5.0  # of what another rank has written
_MOST_AT_OTHER_LINES = 12  # samples: ranks that wait at other lines can never meet
_MOST_AT_ONE_LINE = 300  # a large exchange takes its time
_WAITS_IN = (
    "torch.distributed",
    *(f"paceline.train.unmodified.{name}" for name in ("commands", "exchange", "gradients", "comparison.drift")),
)
_MOST_LINES = 8


class Exchange:
    """The other ranks."""

    def __init__(self, spread: Spread) -> None:
        self.spread, self.torch, self.pid = spread, spread.torch, os.getpid()
        self.account = Account(spread)
        self.begun_count = 0  # of exchanges
        self.meeting = False
        self.groups: tuple[Any, ...] = ()  # of weights, of the model that is called
        self.begun: Callable[[tuple[Any, ...]], None] = lambda groups: None  # asked when a pass comes back to a call
        self._later: Any = None
        self._beside: Any = None
        self._functions = _functions(self)

    def meet(self) -> Any:
        """Return torch's distributed, once the ranks have met."""
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
            hook = sys.excepthook  # torch puts one there that writes "[rank0]:" before each line of an error
            distributed.init_process_group(backend, store=store, rank=spread.rank, world_size=spread.ranks)
            sys.excepthook, self.meeting = hook, False
            watch_waiting(spread, lambda: self.begun_count)
        return distributed

    def part(self) -> None:
        """Leave the others."""
        if self.torch.distributed.is_initialized():
            with suppress(RuntimeError):
                self.torch.distributed.destroy_process_group()

    def all_rows(self, part: Any, parts: Sequence[int], *, of_call: bool = False) -> Any:
        """Return the rows of all ranks, without gradients.

        Args:
            part: The rows of this rank.
            parts: How many rows each rank has.
            of_call: The rows are the output of a call of a model, which must be the same call on all ranks.
        """
        torch, distributed, most = self.torch, self.meet(), max(parts)
        own = part.detach().contiguous()
        row_bytes = own[:1].numel() * own.element_size()
        if not row_bytes:
            return own.new_empty((sum(parts), *own.shape[1:]))
        flat = own.flatten().view(torch.uint8)
        padded = torch.cat([flat, flat.new_zeros((most - own.shape[0]) * row_bytes)]) if own.shape[0] < most else flat
        padded, head = self._with_tag(padded) if of_call else (padded, 0)
        found = flat.new_empty(len(parts) * (head + most * row_bytes))
        gather = (
            getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        )  # torch 2.13, before
        gather(found, padded)
        if head:
            pieces = found.view(len(parts), head + most * row_bytes)
            self.account.check([[tag] for tag in tags_of(pieces)])
            found = pieces[:, head:].flatten()
        if min(parts) < most:
            pieces = found.view(len(parts), most * row_bytes)
            found = torch.cat([pieces[rank, : size * row_bytes] for rank, size in enumerate(parts)])
        return found.view(own.dtype).view(sum(parts), *own.shape[1:])

    def _with_tag(self, flat: Any) -> tuple[Any, int]:
        """Put the digest of all calls before bytes to send. A large tensor's digest is sent by itself."""
        if flat.device.type != "cpu":
            return flat, 0
        if flat.numel() <= _MOST_BYTES_WITH_TAG:
            return with_tag(self.torch, flat, self.account.tag()), TAG_BYTES
        own = self.torch.tensor([[self.account.tag()]], dtype=self.torch.int64)
        self.account.check(self.all_rows(own, [1] * self.spread.ranks).tolist())
        return flat, 0

    def objects(self, part: Any) -> list[Any]:
        """Return what each rank has, of this one's: anything that can be pickled."""
        found: list[Any] = [None] * self.spread.ranks
        self.meet().all_gather_object(found, part)
        return found

    def check_call(self, module: Any) -> None:
        """Refuse a call that is another one on another rank, before it is compared in many exchanges."""
        trained = [name for name, weight in module.named_parameters() if weight.requires_grad]
        said = (self.account.ordinal(module), module.training, self.torch.is_grad_enabled(), trained)
        self.account.check([[zlib.crc32(repr(each).encode())] for each in self.objects(said)])

    def agree(self, numbers: Sequence[int]) -> bool:
        """Say whether all ranks have the same numbers, each of 63 bits."""
        own = self.torch.tensor([list(numbers)], dtype=self.torch.int64)
        return bool((self.all_rows(own, [1] * self.spread.ranks) == own).all())

    def sum_(self, value: Any) -> Any:
        """Add up a tensor over all ranks, in place."""
        self.meet().all_reduce(value)
        return value

    def add_up_later(self, value: Any) -> Any:
        """Begin to add up a tensor over all ranks, in place, in an order of its own; returns what can be waited for."""
        distributed = self.meet()
        if self._later is None:
            self._later = distributed.new_group()
        return distributed.all_reduce(value, group=self._later, async_op=True)

    def gather_later(self, value: Any) -> tuple[Any, Any]:
        """Begin to gather a CPU tensor of all ranks; returns what can be waited for, and where it is gathered."""
        distributed = self.meet()
        if self._beside is None:
            self._beside = distributed.new_group(backend="gloo")
        found = value.new_empty(self.spread.ranks * value.numel())
        gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        return gather(found, value, group=self._beside, async_op=True), found

    def whole(self, part: Any, parts: Sequence[int]) -> Any:
        """Return the rows of all ranks, of this one's; gradients flow back to each rank's own."""
        return self._functions["whole"].apply(part, tuple(parts))

    def own_rows(self, whole: Any, ranks: int) -> Any:
        """Return this rank's rows of a tensor; gradients of all rows flow back on each rank."""
        low, high = bounds(whole.shape[0], ranks, self.spread.rank)
        if whole.requires_grad and self.torch.is_grad_enabled():
            return self._functions["slice"].apply(whole, tuple(sizes(whole.shape[0], ranks)))
        return whole[low:high]

    def shared(self, value: Any) -> Any:
        """Return what all ranks give a model alike; its gradient is the sum over their rows."""
        if value.requires_grad and self.torch.is_grad_enabled():
            return self._functions["shared"].apply(value)
        return value

    def mean(self, value: Any, share: Any) -> Any:
        """Return the sum over ranks of a number times each rank's share."""
        return self._functions["mean"].apply(value, share)

    def total(self, value: Any) -> Any:
        """Return the sum of a tensor over ranks, within a model: its gradient is the sum over ranks as well."""
        return self._functions["total"].apply(value)


def _functions(exchange: Exchange) -> dict[str, Any]:
    """Return the exchanges that gradients flow through; classes are made late, as torch is.

    Each one's backward pass is made of the others, so that gradients can be differentiated again.
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


@dataclass(frozen=True)
class Wait:
    """What a rank waits for.

    Attributes:
        lines: Of the program, innermost first.
        exchange: How many exchanges the rank has begun, and the functions that wait.
        samples: How often nothing had moved.
        at: When this was written, in seconds.
    """

    lines: tuple[str, ...]
    exchange: str
    samples: int
    at: float

    @property
    def line(self) -> str:
        """The innermost line of the program."""
        return self.lines[0] if self.lines else "the end of the program"


def watch_waiting(spread: Spread, exchanges: Callable[[], int]) -> None:
    """End the program if the ranks wait for each other without end; `exchanges` returns how many this one has begun."""
    threading.Thread(target=_Watch(spread, exchanges).run, daemon=True, name="paceline-waiting").start()


def verdict(waits: Sequence[Wait | None], now_s: float) -> str:
    """Return why the ranks cannot go on, or nothing.

    Args:
        waits: Of each rank; None: it does not wait.
        now_s: The time.
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
    """Looks at the main thread of one rank."""

    def __init__(self, spread: Spread, exchanges: Callable[[], int]) -> None:
        self._spread, self._exchanges = spread, exchanges
        self._main, self._pid = threading.main_thread(), os.getpid()
        place = os.path.join(spread.folder, "waits")
        self._store = spread.torch.distributed.FileStore(place, spread.ranks)  # files of ours would be redirected
        self._before: Any = None
        self._samples = 0

    def run(self) -> None:
        """Look until the program ends."""
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
            time.sleep(0 if self._spread.leads else 2 * _EVERY_S)  # rank 0 says so
            self._spread.refuse(why)

    def _waits(self) -> Wait | None:
        frame = sys._current_frames().get(self._main.ident or 0)
        if frame is None or self._spread.off or not _is_exchange(frame):
            self._before = None
            return None
        here = (id(frame), frame.f_lasti, _cpu_ticks(self._main.native_id) // 10)
        self._samples = self._samples + 1 if here == self._before else 0
        self._before = here
        return Wait(_lines(frame), f"{self._exchanges()} {_names(frame)}", self._samples, time.time())

    def _read(self, rank: int) -> Wait | None:
        if not self._store.check([str(rank)]):
            return None
        found = json.loads(self._store.get(str(rank)))
        return Wait(tuple(found["lines"]), str(found["exchange"]), int(found["samples"]), float(found["at"]))


def _is_exchange(frame: FrameType | None) -> bool:
    """Return whether the innermost frame, the recorder's aside, exchanges something with other ranks."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("paceline.inprocess"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_WAITS_IN)


def _lines(frame: FrameType | None) -> tuple[str, ...]:
    found: list[str] = []
    while frame is not None and len(found) < _MOST_LINES:
        name = frame.f_code.co_filename
        if is_own_file(name):
            found.append(f"{os.path.basename(name)}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(found)


def _names(frame: FrameType | None) -> str:
    found: list[str] = []
    while frame is not None and len(found) < _MOST_LINES:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return " ".join(found)


def _cpu_ticks(thread: int | None) -> int:
    """Return the CPU time of a thread in clock ticks; 0 where it is not known."""
    try:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
