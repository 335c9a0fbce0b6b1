"""loader.device_prefetch: copy tensors of the next batch to the device while the current batch is processed.

Only tensors that the program itself moves are copied, to the device of its move. The first two batches of each loader
show which positions of a batch these are. A loader whose batches are not moved, such as for an evaluation on the host,
stays unchanged. The batches are the loader's own (see `batch_moves`), in the same order, and errors keep their place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from paceline.inprocess import hooks
from paceline.inprocess.gpu_detection import has_gpu
from paceline.inprocess.settings import confirmation
from paceline.inprocess.settings.batch_moves import AheadCopy, Handed, Moves, Path
from paceline.inprocess.side_stream import SideStream

_KEY = "loader.device_prefetch"
_WATCHED = 2  # batches of a loader whose moves are observed before any is copied ahead
_UNUSED = 3  # consecutive batches with unused copies, after which no more copies are made
_NOT_MOVED = "the program no longer moves the tensors that it moved before"
_MOVED_OTHERWISE = (
    "the copies could not be used: unlike in the first batches, the program moves the tensors on another stream or to "
    "another device, or changes them before it moves them"
)

Begin = Callable[[Any, list[Any]], AheadCopy]


class LoaderMoves:
    """The program's moves of the batches of one loader."""

    def __init__(self) -> None:
        self.devices: dict[Path, Any] = {}  # target device of each position
        self._watched = 0
        self._unused = 0
        self._is_over = False

    @property
    def is_known(self) -> bool:
        """Whether batches are to be copied ahead: the moves are known, and copying was not stopped."""
        return self._watched >= _WATCHED and bool(self.devices) and not self._is_over

    def learn(self, handed: Handed) -> None:
        """Record which tensors of a batch the program moved; called when the program requests the next batch.

        After the first two batches the moves are known. Later batches show whether the program still uses the
        copies.
        """
        if self._is_over:
            return
        if self._watched < _WATCHED:
            self._watch({path: devices[0] for path, devices in handed.moves.items()})
        elif handed.unused:
            self._unused += 1
            if self._unused == _UNUSED:
                self._is_over = True
                confirmation.gave_up(_KEY, _MOVED_OTHERWISE if handed.moves else _NOT_MOVED)
        elif handed.used:
            self._unused = 0
            confirmation.took(
                _KEY, f"{len(self.devices)} tensors of each batch are copied to {self._places} ahead of time"
            )

    def stop(self, why: str) -> None:
        """Stop copying batches of this loader ahead."""
        self._is_over = True
        confirmation.refused(_KEY, why)

    def _watch(self, moved: dict[Path, Any]) -> None:
        same = moved.items() & self.devices.items() if self._watched else moved.items()
        self.devices = dict(same)
        self._watched += 1
        if self._watched == _WATCHED and not self.devices:
            self.stop("the program moves no tensor of its batches to a CUDA device before it asks for the next batch")

    @property
    def _places(self) -> str:
        return ", ".join(sorted({str(device) for device in self.devices.values()}))


class Ahead:
    """The batches of one iteration over a loader. Once the moves are known, one batch is loaded ahead."""

    def __init__(self, loader_moves: LoaderMoves, moves: Moves, begin: Begin) -> None:
        self._of_loader = loader_moves
        self._moves = moves
        self._begin = begin
        self._next: list[tuple[Any, Handed | None, Exception | None]] = []  # the batch loaded ahead
        self._handed: Handed | None = None  # the program's current batch

    def next(self, fetch: Callable[[], Any]) -> Any:
        """Return the next batch.

        Args:
            fetch: Loads a batch.

        Raises:
            Exception: The error from loading this batch; StopIteration after the last one.
        """
        if self._handed is not None:
            self._of_loader.learn(self._handed)
            self._handed.end()
        self._handed = None
        batch, handed, error = self._next.pop() if self._next else (fetch(), None, None)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame and its callers, and so to the program's batches
        if self._of_loader.is_known:
            try:
                self._fetch(fetch)
            except BaseException:
                self._next.append((batch, handed, None))
                raise
        self._handed = handed or Handed(batch)
        self._handed.hand_out(self._moves)
        return batch

    def _fetch(self, fetch: Callable[[], Any]) -> None:
        """Load the batch after the current one, and start to copy the tensors that the program will move."""
        try:
            batch = fetch()
        except Exception as error:
            self._next.append((None, None, error))
            return
        handed = Handed(batch)
        if not handed.prefetch(self._of_loader.devices, self._begin):
            self._of_loader.stop("the tensors that the program moves are not in pinned memory")
        self._next.append((batch, handed, None))


def patch(torch: Any) -> None:
    """Make each loader copy tensors of the next batch to the device in advance: those that the program moves."""
    if not has_gpu(torch):
        confirmation.refused(_KEY, "there is no CUDA device to copy batches to")
        return
    from torch.utils.data import dataloader

    moves, streams = Moves(torch, lambda device: device.type == "cuda"), dict[Any, SideStream]()

    def begin(device: Any, tensors: list[Any]) -> AheadCopy:
        if device not in streams:
            streams[device] = SideStream(device)
        return streams[device].begin(tensors)

    moves.patch()
    patch_loops(torch, moves, begin, dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)


def patch_loops(torch: Any, moves: Moves, begin: Begin, *iterators: Any) -> None:
    """Make loader iterators load batches ahead.

    Args:
        torch: The module.
        moves: Intercepts the program's moves.
        begin: Starts to copy tensors to a device.
        iterators: torch's two iterator classes.
    """
    known: WeakKeyDictionary[Any, LoaderMoves] = WeakKeyDictionary()
    for iterator in iterators:
        _patch_init(torch, iterator, known, lambda of_loader: Ahead(of_loader, moves, begin))
        _patch_next(iterator)


def _patch_init(torch: Any, iterator: Any, known: Any, ahead: Callable[[LoaderMoves], Ahead]) -> None:
    original, reset = iterator.__init__, iterator._reset

    @functools.wraps(original)
    def __init__(self: Any, loader: Any) -> None:
        original(self, loader)
        of_loader = known.setdefault(loader, LoaderMoves())
        if not loader.num_workers and loader.collate_fn is not torch.utils.data.default_collate:
            of_loader.stop("a collate function in the training process may use the memory of a batch again")
        self._paceline_ahead = ahead(of_loader)

    @functools.wraps(reset)
    def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        if "_paceline_ahead" in vars(self):
            self._paceline_ahead = ahead(known.setdefault(loader, LoaderMoves()))  # an epoch may have been interrupted
        return reset(self, loader, *args, **kwargs)

    iterator.__init__, iterator._reset = __init__, _reset


def _patch_next(iterator: Any) -> None:
    original = iterator._next_data

    @functools.wraps(original)
    def _next_data(self: Any) -> Any:
        if "_paceline_ahead" not in vars(self):
            return original(self)
        return self._paceline_ahead.next(functools.partial(original, self))

    hooks.install(iterator, "_next_data", _next_data)
