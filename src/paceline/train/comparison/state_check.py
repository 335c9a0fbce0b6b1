"""Values that passes of a model change besides parameters and buffers: attributes, and the state of the loss.

Examples are a counter, a running mean in an attribute, or a queue of earlier outputs in a loss. The values are restored
after each pass of the comparison. `run_twice` shows whether the results of a pass depend on such values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.train.comparison.restoration import restore_state
from paceline.train.unmodified.snapshot import Snapshot


class StateCheck:
    """Restores and compares the values that passes of several models change."""

    def __init__(self, models: Sequence[Any]) -> None:
        """Store the models.

        Args:
            models: The split model, as it is called and as this rank holds it, and the whole model.
        """
        self._models = models
        self.functions: tuple[Any, ...] = ()  # the loss and its weight, with `train_batch`
        self.loss_has_state = False  # whether calls of the loss change values outside of the model, such as a counter

    def iterators(self, model: Any = None) -> list[str]:
        """Return the names of iterators that a model and the loss use. Their positions cannot be restored.

        Args:
            model: One of the models; None for the loss only.
        """
        import torch

        roots = self.functions if model is None else (model, *self.functions)
        return Snapshot(torch, roots[0], roots[1:], self._ignored(model)).iterators

    @contextmanager
    def restored(self, model: Any) -> Iterator[dict[str, Any]]:
        """Restore the changed values of a model and of the loss when the context ends.

        Yields:
            A dict. When the context ends, it gets copies of the changed values by name; names of attributes of the
            model begin with a dot.
        """
        values: dict[str, Any] = {}
        with restore_state((model, *self.functions), self._ignored(model)) as changed:
            yield values
        values.update({name.removeprefix(type(model).__name__): value for name, value in changed.items()})
        self.loss_has_state = self.loss_has_state or any(name[0] not in ".[" for name in values)

    def run_twice(self, model: Any, names: Sequence[str], run: Callable[[], Any]) -> tuple[Any, Any]:
        """Return the results of two passes. In the second one, some values are those after the first one.

        Args:
            model: The model that runs.
            names: The names of these values, as `restored` yields them. All other values are restored.
            run: Runs a pass, and returns its results.
        """
        import torch

        root, ignored = type(model).__name__, self._ignored(model)
        with restore_state((model, *self.functions), ignored):
            snapshot = Snapshot(torch, model, self.functions, ignored)
            first = run()
            snapshot.restore_values(each for each in snapshot.changed() if each.removeprefix(root) not in names)
            return first, run()

    def _ignored(self, model: Any) -> list[Any]:
        """Return all parameters and buffers, and the modules of the other models."""
        own = set() if model is None else set(model.modules())
        return [
            *(part for each in self._models for part in each.modules() if part not in own),
            *(tensor for each in self._models for tensor in (*each.parameters(), *each.buffers())),
        ]
