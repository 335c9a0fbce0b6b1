"""An exponential moving average (EMA) of the parameters, on any layout.

After each applied step, average = decay x average + (1 - decay) x parameter; the first step copies. Each rank averages
the share of the parameters that it holds, so nothing is sent. The average is that of `torch.optim.swa_utils`: buffers,
such as the statistics of BatchNorm, are those of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.gradients import is_number


@dataclass(frozen=True, kw_only=True)
class Ema:
    """Whether parameters are averaged, and how slowly; table ``[ema]`` of a recipe."""

    decay: float | None = None  # None: no average

    def __post_init__(self) -> None:
        if self.decay is not None and not (is_number(self.decay) and 0 <= self.decay < 1):
            raise UsageError(f"ema.decay = {self.decay!r} is not allowed; it takes a number from 0 to below 1")

    def check(self, *, apart: bool) -> None:
        """See that all ranks have the same parameters to average.

        Args:
            apart: Whether replicas step by themselves.

        Raises:
            UsageError: They have not.
        """
        if self.decay is not None and apart:
            raise UsageError(
                "[ema] averages parameters that all ranks share, and with [local] or [asynchronous] they have "
                "different ones; leave out one of these tables"
            )


class AveragedWeights:
    """The average of the parameters that one rank holds."""

    def __init__(self, held: Any, parts: Sequence[Any], decay: float) -> None:
        """Begin.

        Args:
            held: The module with the parameters of this rank, under the names of the whole model.
            parts: The modules that FSDP2 may have split.
            decay: Share of the average that a step keeps.
        """
        self._parts = parts
        self._decay = decay
        self._parameters = {name: p for name, p in held.named_parameters() if p.is_floating_point()}
        self.values = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self.updates = 0
        self.in_use = False  # whether the model has the averages now

    def update(self) -> None:
        """Bring the average forward by one step."""
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        averages, parameters = map(_local, (self.values, self._parameters))
        if self.updates == 0:
            for average, parameter in zip(averages, parameters, strict=True):
                average.copy_(parameter)
        elif averages:
            get_ema_multi_avg_fn(self._decay)(averages, parameters, self.updates)
        self.updates += 1

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Give the model the averages inside, and its own parameters back at the end."""
        self.in_use = True
        self._swap()
        try:
            yield
        finally:
            self._swap()
            self.in_use = False

    def _swap(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        for part in self._parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()  # or it would go on with the parameters that it gathered before
        for average, parameter in zip(*map(_local, (self.values, self._parameters)), strict=True):
            own = parameter.clone()
            parameter.copy_(average)
            average.copy_(own)


def _local(tensors: dict[str, Any]) -> list[Any]:
    """Return the memory of this rank behind tensors, of which some may be split."""
    values = (value.detach() for value in tensors.values())
    return [value.to_local() if hasattr(value, "to_local") else value for value in values]
