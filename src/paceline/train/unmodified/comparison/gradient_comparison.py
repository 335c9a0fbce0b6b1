"""Comparison of the gradients of a trial call for all rows with those of the ranks' calls for their own rows.

The gradients of weights are averaged over the ranks, as in training, and must equal those for all rows. The backward
pass of a rank runs twice. The second pass starts from larger gradients and has weights that are changed by one unit in
the last place; its difference from the first shows rounding, and models that limit gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.train.unmodified import shares
from paceline.train.unmodified.call import Call, sizes, times
from paceline.train.unmodified.comparison import trial_call
from paceline.train.unmodified.comparison.tolerance import NEAR, Tolerance
from paceline.train.unmodified.comparison.trial_call import Trial, TrialCalls, source_gradient
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.joins import OWN, ROWS
from paceline.train.unmodified.snapshot import values_differ

_NOT_LINEAR = 0.02  # allowed relative change of a gradient when its source is scaled


class GradientComparison:
    """Compares the gradients of one call for all rows with those for parts of them."""

    def __init__(self, exchange: Exchange, calls: TrialCalls, call: Call, *, low_precision: bool) -> None:
        """Store the arguments.

        Args:
            exchange: The exchanges with the other ranks.
            calls: Runs the backward passes.
            call: The call, which says which inputs are cut.
            low_precision: Whether the model computes in a 16-bit format.
        """
        self._exchange, self._calls, self._call, self._low = exchange, calls, call, low_precision
        self._torch, self._ranks, self._rank = exchange.torch, call.spread.ranks, call.spread.rank
        self._tolerance = Tolerance(low_precision)

    def difference(self, joins: Mapping[Any, str], whole: Trial, own: Trial, moved: Trial) -> str:
        """Return the first difference on any rank, for a message; empty without one. All ranks must call this method.

        Args:
            joins: How each output and changed value is combined, by its index or name.
            whole: The trial call for all rows, after its backward pass.
            own: The trial call for the rows of this rank.
            moved: The same call with weights changed by one unit in the last place.
        """
        for trial, scale in ((own, 1.0), (moved, trial_call.scale_of(low_precision=self._low))):
            self._calls.backward(trial, self._sources(joins, trial), scale, split=True)
        difference = self._of_weights(whole, own, moved) or self._of_inputs(whole, own, moved)
        stored = sorted(name for name in {*whole.late, *own.late} if self._is_other(whole.late, own.late, name))
        if stored and not difference:
            difference = _of_stored_value(stored[0], whole.late.get(stored[0]), self._call.rows)
        return next((each for each in self._exchange.objects(difference) if each), "")

    def _sources(self, joins: Mapping[Any, str], trial: Trial) -> list[tuple[Any, Any]]:
        """Return the outputs for this rank's rows, with the gradients that `exchange` would send back in training."""
        sources = []
        for name, value in trial.tensors(self._torch):
            join = joins.get(name, OWN)
            if join == ROWS:
                low, high = self._call.bounds()
                by = times(sizes(self._call.rows, self._ranks), high - low, value.shape[0]) or 1
                whole = source_gradient(self._torch, value.new_empty((by * self._call.rows, *value.shape[1:])), name)
                gradient = whole[by * low : by * high] * self._ranks
            else:
                gradient = source_gradient(self._torch, value, name)
                if join != OWN:
                    gradient = gradient * shares.weights(self._call.shares())[join][self._rank] * self._ranks
            sources.append((value, gradient))
        return sources

    def _of_weights(self, whole: Trial, own: Trial, moved: Trial) -> str:
        """Compare the gradients of weights, averaged over the ranks."""
        torch, weights = self._torch, self._calls.weights
        names = [name for name, weight in self._call.module.named_parameters() if weight.requires_grad]
        largest = max((float(one.abs().max()) for one in whole.gradients if one is not None and one.numel()), default=0)
        trials = zip(names, weights, whole.gradients, own.gradients, moved.gradients, strict=True)
        for name, weight, expected, one, two in trials:
            zero = torch.zeros_like(getattr(weight, "_local_tensor", weight))
            both = torch.stack([zero if each is None else each.to(zero.dtype) for each in (one, two)])
            if not hasattr(weight, "_local_tensor"):
                both = self._exchange.sum_(both) / self._ranks
            difference = self._of_weight(zero if expected is None else expected, both[0], both[1], largest)
            if difference:
                return f"the gradient of {name} {difference}"
        return ""

    def _of_weight(self, expected: Any, found: Any, moved: Any, largest: float) -> str:
        norm, change = float(found.norm()), float((found - moved).norm())
        rounding = 1e-5 * largest * found.numel() ** 0.5
        if not self._low and change > _NOT_LINEAR * norm + rounding:
            return (
                "is not proportional to the gradients of its outputs, because something limits gradients "
                "within the model"
            )
        if self._tolerance.near_gradient(self._torch, found, expected, moved, largest):
            return ""
        return "for parts of the batch does not add up to that for the whole batch"

    def _of_inputs(self, whole: Trial, own: Trial, moved: Trial) -> str:
        low, high = self._call.bounds()
        for place, expected in enumerate(whole.of_inputs):
            one, two = own.of_inputs[place], moved.of_inputs[place]
            if expected is None or one is None or two is None:
                if expected is not one:
                    return f"its input {place} has a gradient for some samples only"
                continue
            if self._call.is_cut[place]:
                expected, one, two = expected[low:high], one / self._ranks, two / self._ranks
            else:
                one, two = self._exchange.sum_(self._torch.stack([one, two])) / self._ranks
            largest = float(expected.abs().max()) if expected.numel() else 0.0
            if not self._tolerance.near_gradient(self._torch, one, expected, two, largest):
                return (
                    f"the gradient of its input {place} for a part of the batch differs from the same part "
                    f"of the gradient for the whole batch"
                )
        return ""

    def _is_other(self, whole: Mapping[str, Any], own: Mapping[str, Any], name: str) -> bool:
        """Return whether a value that the backward passes changed differs."""
        if name not in whole or name not in own:
            return True
        one, other = whole[name], own[name]
        if isinstance(one, self._torch.Tensor) and isinstance(other, self._torch.Tensor):
            return one.shape != other.shape or not self._tolerance.near(self._torch, other, one, other)
        return values_differ(one, other, NEAR)


def _of_stored_value(name: str, value: Any, rows: int) -> str:
    """Return a message about a value that the backward pass stores, such as a gradient that a hook keeps."""
    if getattr(value, "shape", ())[:1] == (rows,):
        return (
            f"its backward pass stores {name}, which has one row for each sample, and each rank has only its own rows"
        )
    return f"its backward pass computes {name} from all samples of a batch, but each rank has only a part of them"
