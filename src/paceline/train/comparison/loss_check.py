"""Checks of losses in some of the steps: they are means over samples, and ranks train on the batches of one process.

- `CheckedLoss`: the comparison of the first step (`first_step.py`) does not see a difference that starts later, such as
  a penalty over the whole batch whose factor is 0 at first. The loss of the samples of a rank is therefore compared
  with the mean of the losses of two halves of these samples. The model does not run again. Outputs can contain tensors
  without samples, such as a parameter. How to halve such outputs is a guess, which the first call must confirm.
- `OwnBatchCheck`: if no batch comes from `engine.loader`, the ranks compare their losses.
- `SplitLossCheck`: with tp, ranks with the same samples compare their losses.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train.batch_samples import count_samples, is_list_of_samples, is_splittable, like, select_samples
from paceline.train.comparison import advice, samples
from paceline.train.comparison.restoration import restore_state
from paceline.train.passes import Loss
from paceline.train.ranks import agreement, random_states
from paceline.train.ranks.world import World
from paceline.train.recipe import Recipe

_EVERY = 512  # calls between two checks; before that, calls 2, 4, 8, 16 and so on are checked
_ROUNDING = 1e-6  # relative, of the same loss on two ranks
_SPLIT_ROUNDING = {False: 1e-5, True: 1e-3}  # relative, of the same loss on two ranks of tp; True: in 16 bits
_TOLERANCE = 1e-4  # for rounding; larger for losses in bf16 or fp16


class CheckedLoss:
    """Computes the loss, and checks in some calls that it is a mean over samples."""

    def __init__(
        self, loss: Loss, weight: Callable[[Any], Any] | None, layout: Layout, ignored: Sequence[Any] = ()
    ) -> None:
        """Store the arguments.

        Args:
            loss: The loss of the run. What its calls change, such as a counter, is restored after a check.
            weight: How much a target counts; None: all parts alike.
            layout: The layout of the run.
            ignored: Tensors that are not restored, such as those of the model.
        """
        self._loss, self._weight, self._layout, self._ignored = loss, weight, layout, ignored
        self._calls = 0
        self._is_confirmed = False  # whether the first call has confirmed how to halve an output

    def __call__(self, output: Any, target: Any) -> Any:
        """Return the loss of an output and a target.

        Raises:
            UsageError: The loss is not a mean over samples.
        """
        self._calls = calls = self._calls + 1
        if not (calls & (calls - 1) if calls < _EVERY else calls % _EVERY):
            self._check(output, target)
        return self._loss(output, target)

    def _check(self, output: Any, target: Any) -> None:
        plain = _has_samples_only(output, target)
        if self._calls == 1 and not plain:
            self._confirm(output, target)
        elif self._calls > 1 and (plain or self._is_confirmed):
            _, whole, mean = self._difference(output, target)
            if mean is not None:
                raise UsageError(advice.loss_message(self._layout, self._calls, whole, mean))

    def _confirm(self, output: Any, target: Any) -> None:
        """Find out whether the samples of an output can be told, with halves and with one sample and the others."""
        for alone in (False, True):
            why, whole, mean = self._difference(output, target, alone=alone, tolerance=_ROUNDING)
            if mean is not None:
                why = f"it is {whole:.6g}, and the mean of the losses of two parts is {mean:.6g}"
            if why:
                _tell(advice.unchecked_loss_message(self._layout, why))
                return
        self._is_confirmed = True

    def _difference(
        self, output: Any, target: Any, *, alone: bool = False, tolerance: float = _TOLERANCE
    ) -> tuple[str, float, float | None]:
        """Compare a loss with the mean of the losses of two parts of the samples.

        Args:
            output: The output of the model.
            target: The target.
            alone: Whether the first part is one sample; otherwise the parts are halves.
            tolerance: The relative tolerance for losses in fp32.

        Returns:
            Why they cannot be compared, or ""; the loss; and the mean, or None if it differs by no more than rounding.
        """
        import torch

        drawn = {**random_states.of_torch(_device(output)), **random_states.of_host()}
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = [self._compute(*part) for part in _select_parts(output, target, alone=alone)]
        except Exception as error:  # such as a loss of pairs of samples, whose halves may have an odd number
            return f"a part fails with {type(error).__name__}: {error}", 0.0, None
        finally:
            random_states.put(drawn, _device(output))
        if not found:
            return "there are no two samples", 0.0, None
        (whole, _, size), (again, _, _), *parts = found
        weights = sum(weight for _, weight, _ in parts)
        mean = sum(weight * loss for loss, weight, _ in parts if weight) / weights if weights else whole
        scale = max(abs(whole), *(abs(loss) for loss, weight, _ in parts if weight), 0.0)
        largest = [float(value.detach().abs().max()) for value in samples.numbers(output) if value.numel()]
        rounding = 8 * size * max(largest, default=0.0)
        differs = whole == again and abs(whole - mean) > max(tolerance, 8 * size) * scale + rounding
        return "", whole, mean if differs else None

    def _compute(self, output: Any, target: Any, count: int) -> tuple[float, float, float]:
        """Return the loss of some samples, its weight, and the machine epsilon of its format."""
        import torch

        with restore_state((self._loss, self._weight), self._ignored):
            loss = self._loss(output, target)
            weight = float(count) if self._weight is None else float(self._weight(target))
        dtype = loss.dtype if loss.is_floating_point() else torch.float32
        return float(loss), weight, torch.finfo(dtype).eps


class OwnBatchCheck:
    """Checks that all ranks train on the same batches if no batch comes from `engine.loader`.

    Batches from `engine.loader` are those of one process. If the program creates batches itself, such as random ones,
    and they differ between ranks, the ranks train on other batches than one process.
    """

    _is_split = False  # whether the program reads batches from `engine.loader` of any engine, or splits them itself

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps = 0

    @classmethod
    def of(cls, world: World, recipe: Recipe) -> OwnBatchCheck | None:
        """Return the check of a run; None if ranks need no check."""
        is_needed = world.layout.samples > 1 and recipe.checks.samples and not recipe.apart
        return cls(world) if is_needed else None

    @classmethod
    def note_split(cls) -> None:
        """Note that the program reads batches from `engine.loader`, or splits its batches itself."""
        cls._is_split = True

    def check(self, loss: Callable[[], float]) -> None:
        """Compare the losses of the ranks before a step; a collective.

        Args:
            loss: Returns this rank's loss.

        Raises:
            UsageError: They differ, and no batch came from `engine.loader`.
        """
        self._steps += 1
        if self._is_split or not agreement.is_due(self._steps):
            return
        least, most = _range(loss(), self._world, self._world.data_group)
        if most - least > _ROUNDING * max(abs(most), abs(least)):
            raise UsageError(advice.own_batches_message(self._world.layout, self._steps))
        if self._steps == 1 and self._world.rank == 0:
            sys.stderr.write(f"paceline: {advice.same_batches_message(self._world.layout)}\n")


class SplitLossCheck:
    """Checks that the ranks of a tp group have the same loss, because they have the same samples.

    A loss can differ if it depends on activations between two split layers, of which each rank has a part.
    """

    def __init__(self, world: World, tolerance: float) -> None:
        self._world, self._tolerance = world, tolerance
        self._steps = 0

    @classmethod
    def of(cls, world: World, recipe: Recipe) -> SplitLossCheck | None:
        """Return the check of a run; None if ranks need no check."""
        is_needed = world.layout.tp > 1 and recipe.checks.first_step
        return cls(world, _SPLIT_ROUNDING[recipe.precision.dtype() is not None]) if is_needed else None

    def check(self, loss: Callable[[], float]) -> None:
        """Compare the losses of the ranks before a step; a collective.

        Args:
            loss: Returns this rank's loss.

        Raises:
            UsageError: They differ.
        """
        self._steps += 1
        if not agreement.is_due(self._steps):
            return
        least, most = _range(loss(), self._world, self._world.group("tp"))
        if most - least > self._tolerance * max(abs(most), abs(least)):
            raise UsageError(advice.split_loss_message(self._world.layout, self._steps, least, most))


def _range(value: float, world: World, group: Any) -> tuple[float, float]:
    """Return the least and the largest value of the ranks of a group; a collective."""
    import torch

    own = torch.tensor([-value, value], dtype=torch.float64, device=world.device)
    torch.distributed.all_reduce(own, torch.distributed.ReduceOp.MAX, group=group)
    least, most = own.nan_to_num().tolist()
    return -least, most


def _select_parts(output: Any, target: Any, *, alone: bool) -> list[tuple[Any, Any, int]]:
    """Return four selections of an output and a target: an even number of samples twice, then two parts of them.

    Args:
        output: The output of the model.
        target: The target.
        alone: Whether the first part is one sample; otherwise the parts are halves.

    Returns:
        For each selection the output, the target and the number of samples; empty if there are no two samples.

    Raises:
        ValueError: It is unknown which values have samples.
    """
    plain = _has_samples_only(output, target)
    count = count_samples((output, target) if plain else target)
    even = count // 2 * 2
    if not even:
        return []
    middle = 1 if alone else even // 2
    slices = [slice(0, even), slice(0, even), slice(0, middle), slice(middle, even)]
    if plain:
        return [(*select_samples((output, target), count, which), which.stop - which.start) for which in slices]
    pairs = [(_selected(output, count, which), select_samples((target,), count, which)[0]) for which in slices]
    return [(*pair, which.stop - which.start) for pair, which in zip(pairs, slices, strict=True)]


def _has_samples_only(output: Any, target: Any) -> bool:
    """Return whether all tensors of an output and a target have their samples in dimension 0."""
    if not is_splittable((output, target)):
        return False
    try:
        count = count_samples((output, target))
        in_output = count_samples(output)
    except UsageError:
        return False
    return in_output == count and not any(
        _is_parameter(each) and len(each) == count for each in samples.numbers(output)
    )


def _selected(value: Any, count: int, which: slice) -> Any:
    """Return some samples of an output of which some tensors have no samples, or have them in another dimension.

    Raises:
        ValueError: It is unknown which values have samples.
    """
    if isinstance(value, tuple | list) and is_list_of_samples(value, count):
        return value[which]
    if hasattr(value, "ndim"):
        return _selected_rows(value, count, which)
    if isinstance(value, tuple | list):
        return like(value, [_selected(each, count, which) for each in value])
    if isinstance(value, str | bytes | int | float | None):
        return value
    inside = {key: _selected(each, count, which) for key, each in _values_of(value).items()}
    if is_dataclass(value):
        return replace(cast("Any", value), **inside)
    return inside if isinstance(value, Mapping) else type(value)(**inside)


def _values_of(value: Any) -> Mapping[Any, Any]:
    """Return the values of a dictionary or a dataclass, or the parameters of a distribution.

    Raises:
        ValueError: The value is another object.
    """
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    names = getattr(value, "arg_constraints", None)
    if names is None and not isinstance(value, Mapping):
        raise ValueError(f"it contains a value of the type {type(value).__name__}")
    return value if names is None else {name: vars(value)[name] for name in names if name in vars(value)}


def _selected_rows(value: Any, count: int, which: slice) -> Any:
    if not value.ndim or _is_parameter(value):
        return value
    if value.shape[0] % count == 0:  # such as all positions of each sample
        each = value.shape[0] // count
        return value[which.start * each : which.stop * each]
    places = [place for place, size in enumerate(value.shape) if size == count]
    if len(places) > 1:
        raise ValueError(f"several dimensions of an output ({'x'.join(map(str, value.shape))}) may be the samples")
    return value.narrow(places[0], which.start, which.stop - which.start) if places else value


def _is_parameter(value: Any) -> bool:
    return bool(value.ndim and value.requires_grad and value.is_leaf)


def _tell(what: str) -> None:
    import torch

    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        sys.stderr.write(f"paceline: {what}\n")


def _device(output: Any) -> Any:
    import torch

    return next((value.device for value in samples.numbers(output)), torch.device("cpu"))
