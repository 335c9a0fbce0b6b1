"""The position of a loader, which is its state: seed, epoch, samples consumed by all ranks, and shuffle parameters."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from paceline.core.errors import UsageError

_LEAST = {"epoch": 0, "window": 1, "lanes": 1}


@dataclass(frozen=True, kw_only=True)
class Position:
    """The state of a loader, about a hundred bytes."""

    seed: int
    epoch: int
    consumed: int  # samples of this epoch that all ranks together have consumed
    samples: int  # in the dataset
    window: int  # blocks of a lane whose samples are shuffled together
    lanes: int  # see `order.EpochOrder`
    shuffle: bool
    dataset: str = ""  # a digest of the dataset; empty if unknown

    def next_epoch(self) -> Position:
        """Return the position at the start of the next epoch."""
        return replace(self, epoch=self.epoch + 1, consumed=0)

    def state(self) -> dict[str, int | bool | str]:
        """Return the position as a dict for `state_dict`."""
        return asdict(self)


def position_of(state: Mapping[str, Any], samples: int, dataset: str) -> Position:
    """Return the position from a loaded state.

    Args:
        state: A dict from `Position.state`.
        samples: The number of samples in the loader's dataset.
        dataset: The digest of the loader's dataset.

    Raises:
        UsageError: The dict is no state, is damaged, or belongs to another dataset.
    """
    names = [one.name for one in fields(Position) if one.name != "dataset"]
    missing = [name for name in names if not isinstance(state, Mapping) or name not in state]
    if missing:
        raise UsageError(
            f"this is not the state of a loader: it has no {', '.join(missing)}; give what state_dict() returned"
        )
    if state["samples"] != samples:
        raise UsageError(
            f"the state belongs to a data set of {state['samples']:,} samples, and this one has {samples:,}; "
            "give the data set that the state was saved with"
        )
    told = state.get("dataset", "")  # states of older versions have none
    if told and dataset and told != dataset:
        raise UsageError(
            "the state belongs to another data set of the same size, such as another conversion of it, or to other "
            "max_tokens= or length=; give those that the state was saved with"
        )
    numbers = {name: _number(name, state[name]) for name in names if name != "shuffle"}
    if not isinstance(state["shuffle"], bool):
        raise UsageError(f"the state has shuffle {state['shuffle']!r}, which must be True or False; it is damaged")
    if not 0 <= numbers["consumed"] <= samples:
        raise UsageError(f"the state has consumed {numbers['consumed']:,} of {samples:,} samples; it is damaged")
    return Position(shuffle=state["shuffle"], dataset=dataset, **numbers)


def _number(name: str, value: Any) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or (name in _LEAST and found < _LEAST[name]):
        least = f" of {_LEAST[name]} or more" if name in _LEAST else ""
        raise UsageError(f"the state has {name} {value!r}, which must be a whole number{least}; it is damaged")
    return found
