"""The position of a loader: seed, epoch, samples consumed by all ranks, and what the order was made with."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from paceline.core.errors import UsageError

_LEAST = {"epoch": 0, "window": 1, "lanes": 1}


@dataclass(frozen=True, kw_only=True)
class Position:
    """About a hundred bytes that say all."""

    seed: int
    epoch: int
    consumed: int  # samples of the epoch, by all ranks together
    samples: int  # of the data set
    window: int  # blocks of a lane whose samples are mixed with each other
    lanes: int  # parts of the order that take turns
    shuffle: bool
    dataset: str = ""  # digest of the data set; empty where there is none

    def next_epoch(self) -> Position:
        """Return the beginning of the next epoch."""
        return replace(self, epoch=self.epoch + 1, consumed=0)

    def state(self) -> dict[str, int | bool | str]:
        """Return it as a dict."""
        return asdict(self)


def position_of(state: Mapping[str, Any], samples: int, dataset: str) -> Position:
    """Return what a state says.

    Args:
        state: What `Position.state` returned.
        samples: Of the data set that is there.
        dataset: Its digest.

    Raises:
        UsageError: It is no state, or that of another data set.
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
