"""Reasons for messages why the results of a call cannot be combined from those for parts of the batch."""

from __future__ import annotations

from typing import Any

NUMBER = "a number"


def other_lines(whole: list[str], own: list[str]) -> str:
    """Return why a model that prints other lines for a part of a batch cannot be called with parts."""
    pairs = zip([*whole, "nothing"], [*own, "nothing"], strict=False)
    one, other = next(pair for pair in pairs if pair[0] != pair[1])
    return f"it prints {one[:80]!r} for the whole batch, and {other[:80]!r} for a part of it"


def differs(place: int, value: Any) -> str:
    """Return the reason why the outputs of the ranks cannot be combined into the output for the whole batch."""
    kind = type(value)
    if not hasattr(value, "shape") and kind.__module__ != "builtins":
        way_out = "call the model with use_cache=False" if kind.__name__.endswith("Cache") else "let it return tensors"
        return f"its output {place} is a {kind.__name__}, which ranks cannot put together; {way_out}"
    shape = "x".join(map(str, getattr(value, "shape", ()))) or NUMBER
    return (
        f"its output {place} ({shape}) for a part of the batch differs from the same part of the output for the whole "
        "batch"
    )


def of_number(place: Any) -> str:
    """Return the reason for a number that does not follow from the numbers for the parts of the batch."""
    what = f"output {place}" if isinstance(place, int) else str(place)
    return f"its {what} ({NUMBER}) for a part of the batch does not follow from that for the whole batch"


def of_backward(name: str, value: Any, rows: int) -> str:
    """Return the reason for a value that a backward pass computes, and that differs for a part of the batch.

    Args:
        name: The name of the value.
        value: The value for the whole batch.
        rows: The number of rows of the whole batch.
    """
    if getattr(value, "shape", ())[:1] == (rows,):
        return (
            f"its backward pass stores {name}, which has one row for each sample, and each rank has only its own rows"
        )
    return f"its backward pass computes {name} from all samples of a batch, but each rank has only a part of them"
