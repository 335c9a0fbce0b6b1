"""Outputs of modules in a forward pass, by module name and call, so that the first one that differs can be named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from paceline.train.comparison.samples import numbers
from paceline.train.parallel import pp

Outputs = dict[tuple[str, int], list[Any]]  # in the order in which modules returned


@contextmanager
def traced(model: Any, *, deep: bool) -> Iterator[Outputs]:
    """Yield a dict that is filled with the outputs of a model, or of all its modules.

    Args:
        model: The whole model, or what a rank holds of it under the same names.
        deep: Whether outputs of all modules are kept; otherwise those of the model.
    """
    found: Outputs = {}
    calls: Counter[str] = Counter()
    parts = [(name, part) for name, part in model.named_modules() if deep or not name]
    handles = [part.register_forward_hook(partial(_note, found, calls, name)) for name, part in parts]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _note(found: Outputs, calls: Counter[str], name: str, module: Any, inputs: Any, output: Any) -> None:
    import torch

    del module, inputs
    if torch._C._current_graph_task_id() != -1 or pp.is_preparing():  # computed again in backward; or a look at shapes
        return
    found[name, calls[name]] = [value.detach().clone() for value in numbers(output)]
    calls[name] += 1
