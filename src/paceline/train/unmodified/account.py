"""Does each rank do the same things in the same order? Digests of what the program does, which the ranks compare.

Four digests, each of all events so far: calls of models and optimizer steps (which model, in which mode, shapes, frozen
weights, learning rates); inputs of models; losses, and gradients of outputs of models; buffers and settings of models,
one with each call. Every rank has whole inputs, outputs and losses, so that all are the same on all ranks. Digests
travel with the exchange of gradients, and the first one with each exchange of outputs. Large tensors are sampled; the
sample moves on with each call.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from paceline.train.unmodified.state import Spread

_MOST_ELEMENTS = 1 << 15  # of a tensor
_BYTES = 4  # of a digest, each sent as a number that any format holds exactly
KINDS = (
    "the order of model calls and optimizer steps, or a learning rate",
    "an input of a model",
    "a loss, or its gradient with respect to the output of a model",
    "a buffer or a setting of a model",
)


class Account:
    """What the program has done on this rank.

    Args:
        spread: This rank.
    """

    def __init__(self, spread: Spread) -> None:
        self._spread, self._torch = spread, spread.torch
        self._digests = [0] * len(KINDS)
        self._calls = 0
        self._known: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # models and optimizers, in their order
        self._numbers = itertools.count()  # the size of `_known` depends on when each rank collects its garbage
        self.asks = False  # this rank wants a model to be compared again
        self.requests = 0  # for such comparisons, of any rank by now; the same on all ranks
        self._first = 0  # element of a large tensor that is sampled next

    @property
    def length(self) -> int:
        """Return how many numbers `numbers` gives for each rank."""
        return len(KINDS) * _BYTES + 1

    def note_call(self, module: Any, leaves: Sequence[Any]) -> None:
        """Add a call of a model with some inputs."""
        torch = self._torch
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        trained = sum(weight.requires_grad for weight in module.parameters())
        said = (module.training, torch.is_grad_enabled(), trained, [tuple(each.shape) for each in tensors])
        self._add(0, repr((self.ordinal(module), *said)).encode())
        for each in tensors:
            self._add_tensor(1, each)

    def note_state(self, module: Any, *, draws: bool) -> None:
        """Add the settings of one part of a model and one of its buffers, others at each call.

        Args:
            module: The model.
            draws: It draws random numbers, which a buffer may hold; they are each rank's own.
        """
        buffers, parts = list(module.buffers()), list(module.modules())
        self._calls += 1
        settings = vars(parts[self._calls % len(parts)]).items()
        plain = {name: value for name, value in settings if isinstance(value, bool | int | float | str)}
        rounded = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in plain.items()}
        self._add(3, repr(sorted(rounded.items())).encode())
        if buffers and not draws:
            self._add_tensor(3, buffers[self._calls % len(buffers)])

    def note_step(self, optimizer: Any) -> None:
        """Add a step of an optimizer."""
        cpu = self._torch.device("cpu")
        rates = [group.get("lr") for group in optimizer.param_groups]
        plain = [float(rate) for rate in rates if getattr(rate, "device", cpu) == cpu and rate is not None]
        self._add(0, repr((self.ordinal(optimizer), plain)).encode())

    def note_gradient(self, gradient: Any) -> None:
        """Add the gradient of an output."""
        if not (self._spread.on_trial or self._spread.off):
            self._add_tensor(2, gradient)

    def note_losses(self, losses: Any) -> None:
        """Add losses from which a backward pass of the program begins."""
        if self._spread.nested or self._spread.backward:
            return
        for loss in losses if isinstance(losses, tuple | list) else ():
            if isinstance(loss, self._torch.Tensor):
                self.note_gradient(loss)

    def tag(self) -> int:
        """Return the digest of calls and steps."""
        return self._digests[0]

    def digests(self) -> list[int]:
        """Return all digests."""
        return list(self._digests)

    def numbers(self) -> list[float]:
        """Return the digests as numbers below 256, which 16-bit formats hold exactly, and whether this rank asks."""
        digests = [float(byte) for digest in self._digests for byte in digest.to_bytes(_BYTES, "little")]
        return [*digests, float(self.asks)]

    def request(self) -> None:
        """Ask all ranks to compare models again at their next call; the next exchange of gradients tells them."""
        self.asks = True

    def check_all(self, every: Iterable[Sequence[float]]) -> None:
        """Check the digests of each rank, and take note of requests.

        Args:
            every: What each rank has: its digests, whole or in bytes, and whether it asks.
        """
        rows = [list(each) for each in every]
        self.check(row[:-1] for row in rows)
        self.requests += any(row[-1] for row in rows)
        self.asks = False

    def check(self, every: Iterable[Sequence[float]]) -> None:
        """Refuse a program that does something else on another rank.

        Args:
            every: The digests of each rank, whole or in bytes.
        """
        rows = [list(each) for each in every]
        for rank, row in enumerate(rows):
            if row != rows[0]:
                place = next(at for at, (one, two) in enumerate(zip(row, rows[0], strict=True)) if one != two)
                self._digests, self._spread.operands = [0] * len(KINDS), 0
                self._refuse(KINDS[place * len(KINDS) // len(row)], rank)

    def _refuse(self, what: str, rank: int) -> None:
        """End a program that goes another way on one rank."""
        self._spread.refuse(
            f"{what} is not the same on rank {rank} as on rank 0; the program uses something that differs between "
            "processes, such as the time, the process id or unseeded random numbers; make it the same on all ranks"
        )

    def ordinal(self, thing: Any) -> int:
        """Return the number of a model or an optimizer, in the order in which they were first used."""
        if thing not in self._known:
            self._known[thing] = next(self._numbers)
        return self._known[thing]

    def _add(self, kind: int, data: bytes) -> None:
        self._digests[kind] = zlib.crc32(data, self._digests[kind])

    def _add_tensor(self, kind: int, tensor: Any) -> None:
        torch = self._torch
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
            return  # a copy from a GPU would wait for it
        if isinstance(tensor, torch.nn.Parameter) or hasattr(tensor, "_local_tensor"):
            return
        with torch.no_grad():
            flat = tensor.detach().reshape(-1)
            stride = flat.numel() // _MOST_ELEMENTS + 1
            self._first = (self._first + 1) % stride
            taken = flat[self._first :: stride] if stride > 1 else flat
            self._add(kind, taken.contiguous().view(torch.uint8).numpy().tobytes())


def with_tag(torch: Any, flat: Any, tag: int) -> Any:
    """Return bytes to send with a digest before them."""
    return torch.cat([torch.frombuffer(bytearray(struct.pack("<Q", tag)), dtype=torch.uint8), flat])


def tags_of(pieces: Any) -> list[int]:
    """Return the digest before the bytes of each rank, one rank a row."""
    return [struct.unpack("<Q", row.numpy().tobytes())[0] for row in pieces[:, :TAG_BYTES].contiguous()]


TAG_BYTES = 8
