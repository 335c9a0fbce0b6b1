"""Comparison of trial calls with all rows and with a part of them: can the model be split, and how?

All trial calls run in the model's own mode, with gradients, and with the same random numbers for the same rows. The
comparison covers outputs, gradients of weights and inputs, and everything else that the call changed (attributes,
buffers, containers, Python values). Each rank calls the model with its own part. Models that exchange statistics
(BatchNorm) do so as in training. The cost is one call with all rows and two with a part, forward and backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import isfinite, isnan
from typing import Any

from paceline.train.unmodified import shares
from paceline.train.unmodified.call import Call, is_plain, sizes, times
from paceline.train.unmodified.comparison import replay, trial_call
from paceline.train.unmodified.comparison.gradient_comparison import GradientComparison
from paceline.train.unmodified.comparison.tolerance import NEAR, Tolerance
from paceline.train.unmodified.comparison.trial_call import Trial, TrialCalls, source_gradient
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.joins import OWN, ROWS, UNREAD, Way, is_cache, weighs_nothing
from paceline.train.unmodified.snapshot import values_differ
from paceline.train.unmodified.weights import shards

_NUMBER = "a number"
_FACTOR = 8.0  # of the values in one row, in a call that looks for an influence of large values on other rows


@dataclass
class Found:
    """The findings of one rank about the results of a call.

    Attributes:
        why: The difference, for a message; empty without one.
        can_replay: Whether the random numbers of the part could be replayed.
        joins: How each result is combined, by output index or name.
        numbers: For each number its value for all rows, its value for the part, and its change by rounding.
    """

    why: str = ""
    can_replay: bool = True
    joins: dict[Any, str] = field(default_factory=dict)
    numbers: dict[Any, tuple[float, float, float]] = field(default_factory=dict)


def compare(exchange: Exchange, call: Call, before: Way | None, *, trains: bool) -> Way:
    """Return how calls of this kind are split and their results combined.

    Args:
        exchange: The exchanges with the other ranks.
        call: The call.
        before: The result of the last comparison of this kind of call; None for the first.
        trains: Whether the model is in training. A model that cannot be split then ends the program. In evaluation,
            each rank calls such a model with whole batches.
    """
    spread, torch = call.spread, call.spread.torch
    strange = next((leaf for leaf in call.leaves if not is_plain(torch, leaf)), None)
    if strange is not None:
        return _cannot(
            call,
            before,
            trains,
            f"it gets a {type(strange).__name__}, which may contain samples that Paceline cannot split",
        )
    tried = [False, True] if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda") else [False]
    found: Way | str | None = None
    for autocast in tried:
        with trial_call.apart(torch, spread, autocast=autocast), trial_call.small_weights_filled(exchange, call.module):
            found = _compared(exchange, call, before)
        if isinstance(found, Way):
            return found
    if found is None:
        return before or Way(splits=False)  # the call itself fails; the program is to get its error
    exact = None if shards.is_split(call.module) else _compared_in_double(exchange, call, before)
    return exact or _cannot(call, before, trains, str(found))


def _compared(exchange: Exchange, call: Call, before: Way | None) -> Way | str | None:
    """Return how results are combined, why they cannot be combined, or None if the call itself fails."""
    calls = TrialCalls(call)
    try:
        return _Comparison(exchange, calls, before).way()
    except replay.CannotReplay as error:
        return f"its random numbers cannot be split over parts of the batch ({error})"
    finally:
        calls.end()


def _compared_in_double(exchange: Exchange, call: Call, before: Way | None) -> Way | None:
    """Repeat the comparison in double precision, where rounding hardly ever changes the result of a ReLU or a maximum.

    Returns:
        How results are combined, or None if they cannot be combined or the model fails in double precision.
    """
    torch, spread = call.spread.torch, call.spread
    try:
        with (
            trial_call.call_in_double(torch, call) as wide,
            trial_call.apart(torch, spread, autocast=False),
            trial_call.small_weights_filled(exchange, call.module),
        ):
            found = _compared(exchange, wide, before)
    except (RuntimeError, TypeError):  # such as a backward pass of its own for fp32
        return None
    return found if isinstance(found, Way) else None


def _cannot(call: Call, before: Way | None, trains: bool, why: str) -> Way:
    if trains:
        late = f" This was noticed at call {call.number}; steps before it may have trained otherwise." if before else ""
        call.spread.refuse(
            f"{call.name} cannot be given parts of a batch: {why}.{call.describe_list_input()}{late} The first "
            "dimension of its inputs and outputs must be the batch, and samples must not depend on each other; "
            "otherwise, write the loop with paceline.train"
        )
    call.spread.tell(f"{call.name} gets whole batches on each rank in evaluation: {why}")
    return Way(splits=False)


class _Comparison:
    """Compares a call with all rows with calls with a part of them."""

    def __init__(self, exchange: Exchange, calls: TrialCalls, before: Way | None) -> None:
        self._exchange, self._calls, self._before = exchange, calls, before
        self._call, self._spread, self._torch = calls.call, calls.call.spread, calls.call.spread.torch
        self._drawn = replay.Drawn()

    def way(self) -> Way | str | None:
        """Return how results are combined, why they cannot be combined, or None if the call with all rows fails."""
        found = self._with_all_rows(replay.recording(self._torch, self._drawn, self._call.rows))
        if not isinstance(found, Trial):
            return found
        way, can_replay = self._by_parts(found, constant=False)
        if not can_replay:
            constant = replay.constant(self._torch, self._drawn)
            found = self._with_all_rows(constant)
            if not isinstance(found, Trial):
                return found
            way, _ = self._by_parts(found, constant=True)
        return way

    def _with_all_rows(self, mode: Any) -> Trial | str | None:
        try:
            whole = self._calls.forward(self._call, None, mode)
        except replay.CannotReplay:
            raise
        except Exception:
            return None
        _check_effects(self._calls, whole)
        if whole.rewrites:
            return "it changes the lists or dictionaries that it gets"
        if self._calls.graded:
            if self._calls.strange_weights(whole):
                return (
                    "it uses a weight that is not one of its parameters; register it (self.name = "
                    "torch.nn.Parameter(…))"
                )
            if self._drawn.own_generator:
                return (
                    "it draws random numbers for samples from its own torch.Generator, which gives all ranks "
                    "the same numbers"
                )
            if any(whole.inputs[place] is not None for place in whole.changes):
                return "it changes an input in place, and gradients flow through this input"
            if not whole.writes_weights:
                tensors = whole.tensors(self._torch)
                sources = [(value, source_gradient(self._torch, value, name)) for name, value in tensors]
                self._calls.backward(whole, sources, 1.0, split=False)
        return whole

    def _by_parts(self, whole: Trial, *, constant: bool) -> tuple[Way | str, bool]:
        first = ""
        for call in self._call.ways_to_cut():
            for row_major in (True,) if constant or not self._drawn.by_rows else (True, False):
                found, can_replay = self._by_part(whole, call, constant, row_major)
                if isinstance(found, Way) and self._before is None:
                    found = self._influence_of_large_values(call, found, constant, row_major) or found
                if isinstance(found, Way):
                    return found, True
                first = first or found
                if not can_replay and not constant:
                    return found, False
        return first, True

    def _influence_of_large_values(self, call: Call, way: Way, constant: bool, row_major: bool) -> str:
        """Compare one more call, in which the first row has large values.

        A model can depend on other rows only if a value is large, such as one that divides a batch by its largest value
        if that is above 1. The first batch of a program often has no such row.

        Returns:
            The output whose other rows change on any rank, or the number that its rule no longer gives, for a message;
            empty without one.
        """
        floats = [
            place for place, is_cut in enumerate(call.is_cut) if is_cut and call.leaves[place].is_floating_point()
        ]
        cut = [place for place in floats if not bool(((leaf := call.leaves[place]) == leaf.bool()).all())]  # no masks
        if not cut or set(way.joins) <= {OWN, UNREAD}:
            return ""
        leaves = list(call.leaves)
        for place in cut:
            leaves[place] = leaves[place].detach().clone()
            leaves[place][0] *= _FACTOR
        large = replace(call, leaves=leaves)
        every = self._exchange.objects(self._other_rows(large, way, constant, row_major))
        why = next((found for found, _ in every if found), "")
        return why or _other_rule(large, [numbers for _, numbers in every])

    def _other_rows(self, call: Call, way: Way, constant: bool, row_major: bool) -> tuple[str, dict[int, Any]]:
        """Compare the rows of each output, and return the numbers, as in `Found.numbers`, for a call with large values.

        Returns:
            The output whose other rows change, for a message, or ""; and the numbers by output.
        """
        torch, part = self._torch, call.bounds()
        numbers: dict[int, Any] = {}
        try:
            whole = self._calls.forward(call, None, self._mode(constant, (0, call.rows), row_major))
            own = self._calls.forward(call, part, self._mode(constant, part, row_major))
            low = any(leaf.dtype.itemsize < 4 for leaf in own.leaves if isinstance(leaf, torch.Tensor))
            moved = self._calls.forward(call, part, self._mode(constant, part, row_major), 1 << 16 if low else 1)
        except Exception:  # a model may refuse large values
            return "", {}
        for place, join in enumerate(way.joins):
            trials = whole.leaves[place], own.leaves[place], moved.leaves[place]
            if join == ROWS and not _has_rows(torch, call, Tolerance(low), *trials):
                return f"its output {place} depends on other samples if one sample has large values", {}
            if join not in (OWN, ROWS, UNREAD):
                one, two, three = (float(each.detach()) for each in trials)
                numbers[place] = one, two, abs(three - two), Tolerance(low)
        return "", numbers

    def _by_part(self, whole: Trial, call: Call, constant: bool, row_major: bool) -> tuple[Way | str, bool]:
        """Compare `whole` with a call for this rank's rows, in which the inputs that `call` marks as cut are cut.

        Returns:
            How results are combined, or why they cannot be combined; and whether random numbers could be replayed.
        """
        low, part = self._drawn.low_precision, call.bounds()
        found = Found()
        own = moved = whole
        try:
            own = self._calls.forward(call, part, self._mode(constant, part, row_major))
            moved = self._calls.forward(call, part, self._mode(constant, part, row_major), 1 << 16 if low else 1)
            found = self._results_of_part(call, whole, own, moved)
        except replay.CannotReplay as error:
            found.why, found.can_replay = str(error), False
        except Exception as error:
            found.why = f"it fails for a part of the batch ({type(error).__name__}: {str(error)[:200]})"
        way = self._agreed(call, found, whole, own)
        writes = any(trial.writes_weights for trial in (whole, own, moved))
        if isinstance(way, str) or not self._calls.graded or writes or weighs_nothing(call, way):
            return way, not isinstance(way, str) or self._can_replay
        gradients = GradientComparison(self._exchange, self._calls, call, low_precision=low)
        joins: dict[Any, str] = {**dict(enumerate(way.joins)), **{place.name: join for place, join in way.slots}}
        return gradients.difference(joins, whole, own, moved) or way, True

    def _mode(self, constant: bool, part: tuple[int, int], row_major: bool) -> Any:
        if constant:
            return replay.constant(self._torch, self._drawn)
        if not self._drawn.draws:
            return nullcontext()
        return replay.replaying(self._torch, self._drawn, self._call.rows, part, row_major=row_major)

    def _results_of_part(self, call: Call, whole: Trial, own: Trial, moved: Trial) -> Found:
        """Compare the outputs and changed values of the calls with all rows and with this rank's rows.

        Args:
            call: The call, which says which inputs are cut.
            whole: The trial call with all rows.
            own: The trial call with this rank's rows.
            moved: The same call with weights changed by one unit in the last place.
        """
        if own.spec != whole.spec:
            return Found("its outputs have a different structure for a part of the batch")
        if whole.said.lines != own.said.lines:
            return Found(_other_lines(whole.said.lines, own.said.lines))
        found, tolerance = Found(), Tolerance(self._drawn.low_precision)
        for place, value in enumerate(whole.leaves):
            given = (value, own.leaves[place], moved.leaves[place])
            if not self._note(call, found, tolerance, place, given):
                found.why = _other_output(place, value, own.leaves[place])
                return found
        if not any(isinstance(value, self._torch.Tensor) for value in whole.leaves):
            return Found("it returns no tensor whose first dimension is the batch")
        return self._state(call, found, tolerance, (whole, own, moved))

    def _state(self, call: Call, found: Found, tolerance: Tolerance, trials: tuple[Trial, Trial, Trial]) -> Found:
        whole, own, _ = trials
        for name in sorted({*whole.state, *own.state}):
            given = tuple(trial.state.get(name) for trial in trials)
            if tolerance.near_mean(self._torch, name, own.state, whole.state):
                found.joins[name] = OWN
                continue
            if any(name not in one.state for one in trials) or not self._note(call, found, tolerance, name, given):
                found.why = (
                    f"{name} for a part of the batch differs from {name} for the whole batch: it is computed from "
                    "several samples, or its first dimension is not the batch"
                )
            elif found.joins.get(name, OWN) != OWN and name not in own.lasting:
                found.why = f"{name} is computed from all samples of a batch, and cannot be combined from the ranks"
            if found.why:
                break
        return found

    def _note(self, call: Call, found: Found, tolerance: Tolerance, place: Any, given: Any) -> bool:
        """Note how one result is combined. Returns whether it can be combined."""
        torch, (whole, own, moved) = self._torch, given
        if not isinstance(whole, torch.Tensor):
            is_same = _is_same(whole, own)
            trains = self._call.module.training and torch.is_grad_enabled()
            found.joins[place] = (
                UNREAD if trains and isinstance(place, int) and not is_same and is_cache(whole) else OWN
            )
            return is_same or found.joins[place] == UNREAD
        if not all(isinstance(each, torch.Tensor) for each in given):
            return False
        if not whole.dim() and whole.is_floating_point() and not own.dim():
            if not whole.requires_grad and not isinstance(place, int) and tolerance.near(torch, own, whole, moved):
                found.joins[place] = OWN
                return True
            found.joins[place] = _NUMBER
            one, two, three = (float(each.detach()) for each in given)
            found.numbers[place] = (one, two, abs(three - two))
            return True
        join = _join(torch, call, tolerance, whole, own, moved)
        found.joins[place] = join or OWN
        return join is not None

    def _agreed(self, call: Call, found: Found, whole: Trial, own: Trial) -> Way | str:
        """Combine the findings of all ranks: return how results are combined, or why they cannot be combined."""
        every = self._exchange.objects(found)
        self._can_replay = all(each.can_replay for each in every)
        why = next((each.why for each in every if each.why), "")
        if why:
            return why
        other = next((place for place in found.joins if any(e.joins[place] != found.joins[place] for e in every)), None)
        if other is not None:
            return f"its result {other} would have to be combined in a different way on each rank"
        way = Way(is_cut=call.is_cut, draws_for_rows=self._drawn.by_rows, draws_for_all=self._drawn.for_all)
        way.looks, way.changes = 1 + (self._before.looks if self._before else 0), own.changes
        for place in found.numbers:
            if not self._weigh(call, way, found, every, place):
                return _other_number(place, "")
        way.joins = [found.joins[place] for place in range(len(whole.leaves))]
        named = [(name, join) for name, join in found.joins.items() if not isinstance(name, int)]
        unset = [name for name, join in named if join != OWN and name not in own.lasting]
        if unset:
            return f"{unset[0]} is computed from all samples of a batch, and cannot be combined from the ranks"
        way.slots = [(own.places[name], join) for name, join in named if join != OWN]
        return way

    def _weigh(self, call: Call, way: Way, found: Found, every: Sequence[Found], place: Any) -> bool:
        """Choose the rule by which the ranks' values of a number are weighted: the one with the smallest error so far.

        Returns:
            Whether any rule fits.
        """
        whole, own, _ = found.numbers[place]
        parts = [each.numbers[place][1] for each in every]
        noise = max((each.numbers[place][2] for each in every if not isnan(each.numbers[place][2])), default=0.0)
        near, dealt = Tolerance(self._drawn.low_precision).number(whole, noise), call.shares()
        if not isinstance(place, int) and all(abs(part - whole) <= near * abs(whole) for part in parts):
            found.joins[place] = OWN
            return True
        earlier = self._before.off.get(place, {}) if self._before else {}
        errors = shares.errors(dealt, whole, parts, near)
        off = {name: value + earlier.get(name, 0.0) for name, value in errors.items()}
        if not off:
            return False
        way.off[place] = off
        way.settled = way.settled and shares.settled(dealt, off, way.looks)
        found.joins[place] = shares.best(off)
        return True


def _other_rule(call: Call, every: Sequence[Mapping[int, Any]]) -> str:
    """Return an error message if a number of a call with large values follows no rule; otherwise "".

    Any rule is accepted, not only that of the first call. If samples have weights, all of them can be equal in the
    first call, so that several rules give the number; in this call, one weight is larger.

    Args:
        call: The call.
        every: For each rank and number the value for all rows, for the part, its change by rounding, and the tolerance.
    """
    for place in every[0] if all(every) else ():
        whole, parts = every[0][place][0], [each[place][1] for each in every]
        if not all(map(isfinite, [whole, *parts])):
            continue
        near = every[0][place][3].number(whole, max(each[place][2] for each in every))
        if not shares.errors(call.shares(), whole, parts, near):
            return _other_number(place, ", if one sample has large values")
    return ""


def _check_effects(calls: TrialCalls, whole: Trial) -> None:
    """End the program if its model writes to a file, or is to be sharded and returns a weight; show what it says once.

    FSDP2 frees the memory of a weight after the call.
    """
    call = calls.call
    spread, module, tensor = call.spread, call.module, call.spread.torch.Tensor
    if whole.said.file:
        spread.refuse(
            f"{call.name} writes to {whole.said.file} while it is called, and each rank would write about its own "
            "rows; write from the loop, about what the model returns"
        )
    if whole.said.lines and not calls.forward(call, None, nullcontext()).said.lines:
        whole.said.tell()
    if spread.layout.shard == 1 or shards.is_split(module):
        return
    plain = [(name, weight) for name, weight in module.named_parameters() if not hasattr(weight, "full_tensor")]
    places = {weight.untyped_storage().data_ptr(): name for name, weight in plain}
    tensors = [leaf for leaf in whole.leaves if isinstance(leaf, tensor) and leaf.numel()]
    names = [places.get(each.untyped_storage().data_ptr()) for each in tensors]
    if any(names):
        spread.refuse(
            f"{call.name} returns its weight {next(filter(None, names))}, whose memory is freed after the call; read "
            "the weight as an attribute of the model, or use dp in place of shard"
        )


def _is_same(whole: Any, own: Any) -> bool:
    """Return whether values that are no tensors are the same."""
    try:
        return not values_differ(whole, own, NEAR)
    except (RuntimeError, ValueError):  # an object with tensors of other shapes, such as a dataclass
        return False


def _join(torch: Any, call: Call, tolerance: Tolerance, whole: Any, own: Any, moved: Any) -> str | None:
    """Return how a tensor is combined, `OWN` or `ROWS`, or None if it cannot be combined."""
    if own.shape == whole.shape and tolerance.near(torch, own, whole, moved):
        return OWN
    return ROWS if _has_rows(torch, call, tolerance, whole, own, moved) else None


def _has_rows(torch: Any, call: Call, tolerance: Tolerance, whole: Any, own: Any, moved: Any) -> bool:
    """Return whether the output for a part of the rows equals these rows of the output for all rows."""
    low, high = call.bounds()
    by = times(sizes(call.rows, call.spread.ranks), call.rows, whole.shape[0]) if whole.dim() else None
    if by is None or own.shape != (by * (high - low), *whole.shape[1:]):
        return False
    return tolerance.near(torch, own, whole[by * low : by * high], moved)


def _other_lines(whole: list[str], own: list[str]) -> str:
    """Return a message about the first line that a model prints only for all rows, or only for a part of them."""
    pairs = zip([*whole, "nothing"], [*own, "nothing"], strict=False)
    one, other = next(pair for pair in pairs if pair[0] != pair[1])
    return f"it prints {one[:80]!r} for the whole batch, and {other[:80]!r} for a part of it"


def _other_output(place: int, value: Any, own: Any) -> str:
    """Return a message about an output that cannot be combined from the outputs of the ranks.

    Args:
        place: The index of the output.
        value: The output for all rows.
        own: The output for this rank's rows.
    """
    kind = type(value)
    if not hasattr(value, "shape") and kind.__module__ != "builtins":
        way_out = "call the model with use_cache=False" if kind.__name__.endswith("Cache") else "let it return tensors"
        return f"its output {place} is a {kind.__name__}, which ranks cannot put together; {way_out}"
    sizes = [tuple(getattr(each, "shape", ())) for each in (value, own)]
    shape, of_part = ("x".join(map(str, each)) or _NUMBER for each in sizes)
    if len(sizes[0]) == len(sizes[1]) and sizes[0][1:] != sizes[1][1:]:
        return (
            f"its output {place} is {shape} for the whole batch and {of_part} for a part of it, so a size other than "
            "the first depends on the samples (with pad_packed_sequence, pass total_length=input.shape[1])"
        )
    return (
        f"its output {place} ({shape}) for a part of the batch differs from the same part of the output for the whole "
        "batch"
    )


def _other_number(place: Any, condition: str) -> str:
    """Return a message about a number that is not a mean or a sum of the numbers for the parts of the batch."""
    what = f"output {place}" if isinstance(place, int) else str(place)
    return (
        f"its {what} ({_NUMBER}) is not a sum or a mean over samples or over what an input counts{condition}; let it "
        "return the tensors from which it computes the number, and compute the number in the script, where each rank "
        "has all rows (with Hugging Face's Trainer: compute_loss_func)"
    )
