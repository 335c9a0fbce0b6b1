"""Digests of what the program does on a rank; ranks compare them to check that all do the same in the same order.

There are four running CRC32 digests, one for each entry of `KINDS`: calls of models and optimizer steps (model, mode,
input shapes, number of trained weights, learning rates); inputs of models; losses, and gradients of outputs of models;
buffers and settings of models (with every call, one buffer and the settings of one submodule). Every rank has whole
inputs, outputs and losses, so the digests are equal on all ranks. All digests are sent with the gradients; the first
digest also with each exchange of outputs. A request to compare a model again is sent with them. Of a large tensor,
every n-th element is sampled; the first sampled element changes with each call.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from paceline.train.ranks.agreement import bytes_of
from paceline.train.unmodified.state import Spread, plain_settings

_MOST_ELEMENTS = 1 << 15  # that are sampled of a tensor
_DIGEST_BITS = 32
_BYTES = 4  # of a digest; each is sent as a number below 256, which any format holds exactly
KINDS = (
    "the order of model calls and optimizer steps, or a learning rate",
    "an input of a model",
    "a loss, or its gradient with respect to the output of a model",
    "a buffer or a setting of a model",
)


class Account:
    """The digests of what the program has done on this rank.

    Args:
        spread: The state of this rank.
    """

    def __init__(self, spread: Spread) -> None:
        self._spread, self._torch = spread, spread.torch
        self._digests = [0] * len(KINDS)
        self._calls = 0
        self._known: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # models, optimizers
        self._numbers = itertools.count()  # not len(_known), which shrinks when garbage is collected
        self.asks = False  # whether this rank requests that models are compared again
        self.requests = 0  # number of exchanges with a request from any rank; equal on all ranks
        self._first = 0  # index of the first sampled element of a large tensor

    @property
    def length(self) -> int:
        """The length of the list that `numbers` returns."""
        return len(KINDS) * _BYTES + 1

    def note_call(self, module: Any, leaves: Sequence[Any]) -> None:
        """Add a call of a model to the digests.

        Args:
            module: The model.
            leaves: Its flattened inputs; values that are not tensors are ignored.
        """
        torch = self._torch
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        trained = sum(weight.requires_grad for weight in module.parameters())
        said = (module.training, torch.is_grad_enabled(), trained, [tuple(each.shape) for each in tensors])
        self._add(0, repr((self.ordinal(module), *said)).encode())
        for each in tensors:
            self._add_tensor(1, each)

    def note_state(self, module: Any, *, draws: bool) -> None:
        """Add one buffer of a model and the settings of one of its submodules to the digest of buffers and settings.

        Each call takes the next buffer and the next submodule.

        Args:
            module: The model.
            draws: Whether the model draws random numbers. Its buffers are then skipped, as they can differ between
                ranks.
        """
        buffers, parts = list(module.buffers()), list(module.modules())
        self._calls += 1
        plain = plain_settings(parts[self._calls % len(parts)])
        rounded = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in plain.items()}
        self._add(3, repr(sorted(rounded.items())).encode())
        if buffers and not draws:
            self._add_tensor(3, buffers[self._calls % len(buffers)])

    def note_step(self, optimizer: Any) -> None:
        """Add a step of an optimizer, with its learning rates, to the digest of calls and steps."""
        cpu = self._torch.device("cpu")
        rates = [group.get("lr") for group in optimizer.param_groups]
        plain = [float(rate) for rate in rates if getattr(rate, "device", cpu) == cpu and rate is not None]
        self._add(0, repr((self.ordinal(optimizer), plain)).encode())

    def note_gradient(self, gradient: Any) -> None:
        """Add the gradient of a model's output to the digest of losses and gradients, except in trial calls."""
        if not (self._spread.on_trial or self._spread.off):
            self._add_tensor(2, gradient)

    def note_losses(self, losses: Any) -> None:
        """Add the losses from which the program starts a backward pass to the digest of losses and gradients."""
        if self._spread.nested or self._spread.backward:
            return
        for loss in losses if isinstance(losses, tuple | list) else ():
            if isinstance(loss, self._torch.Tensor):
                self.note_gradient(loss)

    def tag(self) -> int:
        """Return the digest of model calls and optimizer steps, in 32 bits, and above it whether this rank requests."""
        return self._digests[0] | self.asks << _DIGEST_BITS

    def check_tags(self, tags: Sequence[int]) -> None:
        """Compare the digests of calls and steps of all ranks, and count requests for a comparison of models.

        Args:
            tags: What `tag` returned on each rank.
        """
        self.check([tag & (1 << _DIGEST_BITS) - 1] for tag in tags)
        self._note_requests(any(tag >> _DIGEST_BITS for tag in tags))

    def digests(self) -> list[int]:
        """Return the four digests, in the order of `KINDS`."""
        return list(self._digests)

    def numbers(self) -> list[float]:
        """Return the bytes of the digests as numbers, then 1.0 if this rank requests a comparison, else 0.0.

        Numbers from 0 to 255 are exact in 16-bit formats.
        """
        digests = [float(byte) for digest in self._digests for byte in digest.to_bytes(_BYTES, "little")]
        return [*digests, float(self.asks)]

    def request(self) -> None:
        """Request that all ranks compare models again; the request is sent with the next outputs or gradients."""
        self.asks = True

    def check_all(self, every: Iterable[Sequence[float]]) -> None:
        """Compare the digests of all ranks, and count requests for a comparison of models.

        Args:
            every: One row for each rank: its digests, as integers or as bytes, and then whether it requests a
                comparison.
        """
        rows = [list(each) for each in every]
        self.check(row[:-1] for row in rows)
        self._note_requests(any(row[-1] for row in rows))

    def _note_requests(self, are_there: bool) -> None:
        self.requests += are_there
        self.asks = False

    def check(self, every: Iterable[Sequence[float]]) -> None:
        """End the program if the digests of a rank differ from those of rank 0.

        Args:
            every: One row for each rank: its digests, as integers or as bytes.

        Raises:
            Refusal: The digests differ.
        """
        rows = [list(each) for each in every]
        for rank, row in enumerate(rows):
            if row != rows[0]:
                place = next(at for at, (one, two) in enumerate(zip(row, rows[0], strict=True)) if one != two)
                self._digests, self._spread.operands = [0] * len(KINDS), 0
                self._refuse(KINDS[place * len(KINDS) // len(row)], rank)

    def _refuse(self, what: str, rank: int) -> None:
        """End the program with a message that names the rank whose actions differ from those of rank 0."""
        of_batch = (
            ", or the model computes it from the samples of a batch, of which each rank has only a part; steps before "
            "may have trained otherwise"
        )
        self._spread.refuse(
            f"{what} is not the same on rank {rank} as on rank 0; the program uses something that differs between "
            "processes, such as the time, the process id or unseeded random numbers; make it the same on all ranks"
            f"{of_batch if what == KINDS[3] else ''}"
        )

    def ordinal(self, thing: Any) -> int:
        """Return the number of a model or an optimizer, counted from 0 in the order of first use."""
        if thing not in self._known:
            self._known[thing] = next(self._numbers)
        return self._known[thing]

    def _add(self, kind: int, data: bytes) -> None:
        self._digests[kind] = zlib.crc32(data, self._digests[kind])

    def _add_tensor(self, kind: int, tensor: Any) -> None:
        torch = self._torch
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
            return  # a copy from a GPU would synchronize
        if isinstance(tensor, torch.nn.Parameter) or hasattr(tensor, "_local_tensor"):
            return
        with torch.no_grad():
            flat = tensor.detach().reshape(-1)
            stride = flat.numel() // _MOST_ELEMENTS + 1
            self._first = (self._first + 1) % stride
            taken = flat[self._first :: stride] if stride > 1 else flat
            self._add(kind, bytes_of(taken).numpy().tobytes())


def with_tag(torch: Any, flat: Any, tag: int) -> Any:
    """Return a uint8 tensor with a digest in front, in `TAG_BYTES` bytes."""
    return torch.cat([torch.frombuffer(bytearray(struct.pack("<Q", tag)), dtype=torch.uint8), flat])


def tags_of(pieces: Any) -> list[int]:
    """Return the digest at the start of each row of a uint8 tensor with one row for each rank."""
    return [struct.unpack("<Q", row.numpy().tobytes())[0] for row in pieces[:, :TAG_BYTES].contiguous()]


TAG_BYTES = 8
