"""Blocks of shards in memory: read ahead of the steps that need them, each in one piece, within a memory budget.

Reader threads fetch blocks in the order in which steps need them, several at a time. A thread that needs a missing
block reads it itself, or waits for the reader that has started. Buffers are reused, because a new buffer costs as many
page faults as reading its bytes from the page cache.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.data.format.folders import LostPart
from paceline.data.order.mixed import MixedOrder
from paceline.data.order.order import EpochOrder
from paceline.data.order.position import Position
from paceline.data.order.slices import Slice, coming, planned
from paceline.data.order.token_budget import BudgetPlan, budget_coming, budget_planned
from paceline.data.reading.decoded_cache import DecodedCache
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.stages import Lap, StageClock

Numbers = NDArray[np.int64]
_PLANNED = 16  # batches whose blocks are requested together
_PLANNED_NUMBERS = 64  # batches that are planned together without blocks
_UNUSED = 2  # reference count of an unused buffer: the list, and the call of getrefcount


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block: a range of bytes of a shard, in memory."""

    begin: int  # the offset in the shard's file
    data: memoryview
    fetched: bool = False  # whether it came from a store, not from the disk

    def part(self, offset: int, length: int) -> memoryview:
        """Return `length` bytes at an offset in the shard's file, or fewer if the file ends before."""
        return self.data[offset - self.begin : offset - self.begin + length]


class Buffers:
    """Released buffers of blocks, for reuse."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[bytearray] = []

    def taken(self, length: int) -> bytearray:
        """Return an unused buffer of at least `length` bytes, or a new one."""
        with self._lock:
            for place in range(len(self._kept)):
                if len(self._kept[place]) >= length and sys.getrefcount(self._kept[place]) <= _UNUSED:
                    return self._kept.pop(place)
        return bytearray(length)

    def keep(self, buffer: bytearray, most_bytes: int) -> None:
        """Keep a buffer for reuse, if all kept buffers then have at most `most_bytes` bytes together."""
        with self._lock:
            if sum(map(len, self._kept)) + len(buffer) <= most_bytes:
                self._kept.append(buffer)

    @property
    def held_bytes(self) -> int:
        """The bytes of all buffers kept for reuse."""
        with self._lock:
            return sum(map(len, self._kept))


class BlockStore:
    """The blocks of a dataset that are in memory, and the threads that read ahead."""

    def __init__(
        self,
        dataset: ShardedDataset,
        buffers: Buffers,
        budget_bytes: int,
        clock: StageClock,
        waited: Callable[[float], None],
    ) -> None:
        """Create an empty store; `allow` starts the reader threads.

        Args:
            dataset: The dataset.
            buffers: Buffers for reuse.
            budget_bytes: The most bytes of all blocks together; one block is always allowed.
            clock: Sums the time of reading.
            waited: Is called with the seconds that a thread waited for a block.
        """
        self._dataset = dataset
        self._buffers = buffers
        self._budget = budget_bytes
        self._clock = clock
        self._lock = threading.Condition()
        self._blocks: OrderedDict[int, Future[Block]] = OrderedDict()  # the last used block is last
        self._wanted: deque[int] = deque()
        self._sizes: dict[int, int] = {}
        self._lost: dict[int, LostPart] = {}  # not read again
        self._reading = dataset.reading()
        self._plans: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        self._closed = False
        self._waited = waited
        self._allowed = 0
        self._readers: list[threading.Thread] = []

    def allow(self, readers: int) -> None:
        """Set how many threads may read ahead; a dataset in an object store has a minimum."""
        readers = max(readers, self._reading.readers)
        with self._lock:
            self._allowed = readers
            self._lock.notify_all()
        for number in range(len(self._readers), readers):
            reader = threading.Thread(
                target=self._read_ahead, args=(number,), name=f"paceline-reader-{number}", daemon=True
            )
            self._readers.append(reader)
            reader.start()

    def want(self, blocks: Sequence[int]) -> None:
        """Set the blocks to read next, in the order in which they are needed.

        A block that was in the call before the last, and in neither of the two later calls, is released: no thread uses
        it any more.
        """
        with self._lock:
            before, last = self._plans
            self._plans = (last, frozenset(blocks))
            for block in before - last - self._plans[1]:
                if block in self._blocks and self._blocks[block].done():
                    self._drop(block)
            known = {*self._wanted, *self._blocks, *self._lost}
            self._wanted.extend(block for block in blocks if block not in known)
            self._lock.notify_all()

    def get(self, block: int) -> Block:
        """Return a block; if it is not in memory, read it now or wait for its reader.

        Raises:
            LostPart: The block cannot be read.
            Stopped: `stop` was called.
        """
        with self._lock:
            if block in self._lost:
                raise self._lost[block]
            found = self._blocks.get(block)
            own = found is None
            if found is None:
                found = self._begun(block)
            self._blocks.move_to_end(block)
        if not found.done():
            begun = time.perf_counter()
            if own:
                self._fill(block, found)
            found.exception()
            self._waited(time.perf_counter() - begun)
        return found.result()

    @property
    def foreseen(self) -> int:
        """How many samples beyond the planned steps to request, because an object store is slow; 0 for a disk."""
        if not self._reading.readers:
            return 0
        blocks = self._dataset.blocks
        each = max(1.0, float((blocks["end"] - blocks["begin"]).sum()) / len(self._dataset))
        return int(self._budget / 2 / each)

    @property
    def held_bytes(self) -> int:
        """The bytes of all blocks, including those being read, and of buffers kept for reuse."""
        with self._lock:
            return sum(self._sizes.values()) + self._buffers.held_bytes

    def stop(self) -> None:
        """Cancel all reads, because no block is needed any more."""
        with self._lock:
            self._closed = True
            self._wanted.clear()
            self._lock.notify_all()
        self._reading.stop()

    def close(self) -> None:
        """End the readers, close the files, and release all blocks."""
        self.stop()
        for reader in self._readers:
            reader.join()
        self._reading.close()
        with self._lock:
            for block in list(self._blocks):
                self._drop(block)

    def _read_ahead(self, number: int) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or (number < self._allowed and self._has_work()))
                if self._closed:
                    return
                block = self._wanted.popleft()
                if block in self._blocks:
                    continue
                future = self._begun(block)
            self._fill(block, future)

    def _has_work(self) -> bool:
        """Return whether a block is requested that fits in the budget besides the blocks in memory (needed sooner)."""
        return bool(self._wanted) and sum(self._sizes.values()) + self._size(self._wanted[0]) <= self._budget

    def _begun(self, block: int) -> Future[Block]:
        """Note that a block is being read; drop the least recently used blocks over the budget. The lock is held."""
        future: Future[Block] = Future()
        self._blocks[block] = future
        self._sizes[block] = self._size(block)
        for old in list(self._blocks):
            if sum(self._sizes.values()) <= self._budget or old == block:
                break
            if self._blocks[old].done():
                self._drop(old)
        return future

    def _drop(self, block: int) -> None:
        """Release a block, and keep its buffer for reuse. The lock is held."""
        future = self._blocks.pop(block)
        self._sizes.pop(block)
        if future.exception() is None:
            buffer = future.result().data.obj
            assert isinstance(buffer, bytearray)  # created by `_read`
            self._buffers.keep(buffer, self._budget - sum(self._sizes.values()))

    def _fill(self, block: int, future: Future[Block]) -> None:
        try:
            future.set_result(self._read(block))
        except BaseException as error:
            with self._lock:
                if isinstance(error, LostPart):
                    self._lost[block] = error
                if self._blocks.get(block) is future:
                    del self._blocks[block]
                    self._sizes.pop(block, None)
                self._lock.notify_all()
            future.set_exception(error)

    def _read(self, block: int) -> Block:
        piece, length = self._dataset.piece(block), self._size(block)
        lap = Lap()
        data = memoryview(self._buffers.taken(length))[:length]
        done, stage = self._reading.fill(piece, data)
        lap.mark(stage, self._dataset.samples_in(block))
        if stage == "read":  # the time of "fetch" is the wait of batches, see `LostSampleReplacer`
            self._clock.add(stage, lap.spent[stage])
        return Block(begin=piece.begin, data=data[:done].toreadonly(), fetched=stage == "fetch")

    def _size(self, block: int) -> int:
        row = self._dataset.blocks[block]
        return int(row["end"]) - int(row["begin"])


def steps_ahead(
    order: EpochOrder | MixedOrder,
    at: Position,
    share: Slice,
    store: BlockStore | None,
    cache: DecodedCache | None,
    plan: BudgetPlan | None = None,
) -> Iterator[tuple[int, Numbers]]:
    """Yield, for each step left, the number of samples consumed after it and the numbers of its samples.

    The blocks of coming steps are requested from the store meanwhile.

    Args:
        order: The order of the epoch.
        at: The position where the loop begins.
        share: The rank.
        store: Reads blocks; None for a dataset without blocks.
        cache: The cache of decoded images, whose blocks need not be read.
        plan: The batches of the epoch under a token budget; None for batches of a fixed number of samples.
    """
    most = _PLANNED if store is not None else _PLANNED_NUMBERS
    steps = planned(at.samples, at.consumed, share, most)
    for after, places in steps if plan is None else budget_planned(plan, at.consumed, share, most):
        together = np.concatenate(places)
        ids = order.ids(together)
        if store is not None:
            foreseen = store.foreseen
            beyond = (
                coming(at.samples, after[-1], share, foreseen)
                if plan is None
                else budget_coming(plan, after[-1], share, foreseen)
            )
            soon, new = np.append(together, beyond), np.append(ids, order.ids(beyond))
            unknown = ... if cache is None else ~cache.known(new)
            store.want(order.blocks(soon[unknown]))
        yield from zip(after, np.split(ids, np.cumsum([len(own) for own in places[:-1]])), strict=True)
