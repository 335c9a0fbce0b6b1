"""Kernels and bytes of a program whose kernels are not fused, counted in the record of its step.

Each operator launches one kernel, except views. All operators except matrix products and attention are bound by
memory: they read their arguments once and write their results once. The shape of the largest tensor shows what an
operator works on: logits (tokens x vocabulary), weights (the matrices of products), or activations (all other shapes).

Memory that the forward pass allocates, and that is still allocated when the backward pass begins, counts as saved
tensors. The peak at the loss has no gradients yet, and the peak at the optimizer step has no activations
(`cost.memory`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.plan.models.architecture import Transformer
from paceline.plan.models.operators import FREE, kind_of

_HEAVY = ("product", "attention", "convolution")  # families of operators with their own formulas
_MOST_BACKWARD_PRODUCTS = 2  # per product of the forward pass; more if the program recomputes activations
_LOOKUP = "aten.embedding."
_ALMOST = 0.95  # least share of the logits that a loss over shifted tokens has
_FUSED_LISTS = 4  # weights, gradients and two moments; only gradients are not written
_LOGIT_BYTES = (2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class CountedStep:
    """Kernels and bytes of one micro-step and of the optimizer.

    Attributes:
        forward_kernels: Kernels of one block in the forward pass; those outside the blocks are spread over them.
        backward_kernels: The same for the backward pass.
        forward_moved: Bytes that memory-bound operators read and write, per token and block.
        backward_moved: The same for the backward pass.
        weight_moved: Bytes moved to convert weights and their gradients, per weight.
        logit_moved: Bytes moved by the loss and its gradient, per logit.
        optimizer_moved: Bytes moved by the optimizer, per weight.
        saved: Bytes saved for the backward pass, per token and block.
        weight_saved: Bytes of converted weights saved for the backward pass, per weight.
        logit_peak: Most bytes of live logits and of their gradients, per logit.
        optimizer_peak: Bytes of temporary tensors of the optimizer, per weight.
    """

    forward_kernels: float
    backward_kernels: float
    forward_moved: float
    backward_moved: float
    weight_moved: float
    logit_moved: float
    optimizer_moved: float
    saved: float
    weight_saved: float
    logit_peak: float
    optimizer_peak: float


@dataclass(frozen=True)
class _TensorShapes:
    """The kind of the tensors that an operator works on, by their shapes: logits, weights or activations."""

    tokens: int
    vocab: int
    matrices: frozenset[tuple[int, ...]]

    def of(self, operator: Mapping[str, Any]) -> str:
        """Return the kind of a tensor: ``logits``, ``weights`` or ``blocks``."""
        shapes = list(_shapes([operator["args"], operator["kwargs"]]))
        if any(self._is_logits(shape) for shape in shapes):
            return "logits"
        if operator["op"].startswith(_LOOKUP):  # reads only the rows that it returns
            return "blocks"
        largest = max(shapes, key=math.prod, default=())
        return "weights" if largest in self.matrices or "embedding_dense_backward" in operator["op"] else "blocks"

    def _is_logits(self, shape: Sequence[int]) -> bool:
        share = math.prod(shape) / self.tokens / self.vocab
        return len(shape) > 1 and shape[-1] == self.vocab and _ALMOST <= share <= 1

    def logits_in(self, size: int) -> bool:
        """Return whether a storage of so many bytes holds logits."""
        each = size / self.tokens / self.vocab
        return any(_ALMOST * width <= each <= width for width in _LOGIT_BYTES)


def counted_step(note: Mapping[str, Any], model: Transformer, tokens: int) -> CountedStep | None:
    """Return the kernels and bytes of a recorded step; None if the record does not show them.

    Args:
        note: The record of the first step, with the operators of its passes.
        model: The model that the program trains; all of its weights are trained.
        tokens: Tokens of one micro-step.
    """
    step, steps = note.get("step"), note["micro_steps"] or 1
    if step is None or note["compiled"] or model.experts or not model.causal:
        return None
    if len(note["optimizers"]) != 1 or "step" not in note["optimizers"][0]:
        return None
    passes = [each for each in step["operators"] if _launches(each)]
    products = [_calls(passes, backward=way, family="product") for way in (False, True)]
    attention = _calls(passes, backward=False, family="attention")
    if not products[0] or products[1] > _MOST_BACKWARD_PRODUCTS * products[0] or attention != steps * model.layers:
        return None  # recomputation, or attention in single operators, which a GPU would not run
    place = _TensorShapes(tokens, model.vocab, _matrices(passes))
    moved = {key: value / steps for key, value in _moved(passes, place).items()}
    live = _live_bytes(step, place)
    per_block, logits = model.layers * tokens, tokens * model.vocab
    weights = note["trained"]
    return CountedStep(
        forward_kernels=sum(each["count"] for each in passes if not each["backward"]) / steps / model.layers,
        backward_kernels=sum(each["count"] for each in passes if each["backward"]) / steps / model.layers,
        forward_moved=moved.get(("blocks", False), 0.0) / per_block,
        backward_moved=moved.get(("blocks", True), 0.0) / per_block,
        weight_moved=sum(moved.get(("weights", way), 0.0) for way in (False, True)) / weights,
        logit_moved=sum(moved.get(("logits", way), 0.0) for way in (False, True)) / logits,
        optimizer_moved=_optimizer_moved(note["optimizers"][0]["step"]),
        saved=live["blocks"] / per_block,
        weight_saved=live["weights"] / weights,
        logit_peak=live["logits"] / logits,
        optimizer_peak=_optimizer_peak(note),
    )


def _launches(operator: Mapping[str, Any]) -> bool:
    """Return whether an operator launches a kernel. Copies that change no format are those to the meta device."""
    copied = operator["op"].startswith("aten._to_copy")
    given, asked = str(operator["args"]), str((operator["kwargs"].get("dtype") or {}).get("s", ""))
    return kind_of(operator).family != FREE and not (copied and asked.removeprefix("torch.") in given)


def _calls(operators: Sequence[Mapping[str, Any]], *, backward: bool, family: str) -> int:
    found = (each for each in operators if each["backward"] == backward and kind_of(each).family.startswith(family))
    return sum(each["count"] for each in found)


def _matrices(operators: Sequence[Mapping[str, Any]]) -> frozenset[tuple[int, ...]]:
    """Return the shapes of the weights of products and of embeddings, in both directions."""
    forward = [each for each in operators if not each["backward"]]
    products = [each for each in forward if each["op"].startswith(("aten.mm.", "aten.addmm."))]
    found = {list(_shapes(each["args"]))[-1] for each in products}
    found |= {next(_shapes(each["args"])) for each in forward if each["op"].startswith(_LOOKUP)}
    return frozenset(found | {shape[::-1] for shape in found})


def _moved(operators: Sequence[Mapping[str, Any]], place: _TensorShapes) -> dict[tuple[str, bool], float]:
    """Return the bytes that memory-bound operators move, by what they work on and by pass."""
    found: dict[tuple[str, bool], float] = {}
    for each in operators:
        if kind_of(each).family.startswith(_HEAVY):
            continue
        key = (place.of(each), each["backward"])
        read = each["written_bytes"] if each["op"].startswith(_LOOKUP) else each["read_bytes"]
        found[key] = found.get(key, 0.0) + read + each["written_bytes"]
    return found


def _optimizer_moved(step: Mapping[str, Any]) -> float:
    """Return the bytes that the optimizer moves per weight, from its recorded step on a small matrix."""
    found = 0.0
    for each in step["operators"]:
        if kind_of(each).family != FREE:
            found += each["read_bytes"] + (each["written_bytes"] or each["read_bytes"] * _written_share(each))
    return float(found / step["weights"])


def _written_share(operator: Mapping[str, Any]) -> float:
    """Return the share of the arguments that an operator without results writes: the first list, or all but one."""
    lists = sum(1 for each in operator["args"] if isinstance(each, list) and each)
    return (1 - 1 / _FUSED_LISTS) if "_fused_" in operator["op"] else 1 / max(1, lists)


def _optimizer_peak(note: Mapping[str, Any]) -> float:
    """Return the temporary bytes per weight: Adam's roots of all second moments, unless one kernel does all."""
    optimizer, width = note["optimizers"][0], note["model"]["trained_bytes"]
    moments = (optimizer["state_bytes"] or 0.0) >= 2 * width
    return float(width) if moments and not optimizer["fused"] else 0.0


def _live_bytes(step: Mapping[str, Any], place: _TensorShapes) -> dict[str, float]:
    """Return the bytes that are saved when the first backward pass begins, and the peak of the logits."""
    operators = {each["index"]: each for each in step["operators"]}
    kinds: dict[int, str] = {}
    held = {"blocks": 0.0, "weights": 0.0, "logits": 0.0}
    saved, peak = None, 0.0
    ends = [start for start, _ in step["calls"][1:]] + [len(step["memory"])]
    for (start, index), end in zip(step["calls"], ends, strict=True):
        operator = operators[index]
        if operator["backward"] and saved is None:
            saved = dict(held)
        for event in step["memory"][start:end]:
            number, size = abs(event) - 1, step["sizes"][abs(event) - 1]
            if event > 0:
                kinds[number] = _kind(operator, size, place)  # the results of this operator
            if number in kinds:
                held[kinds[number]] += size if event > 0 else -size
            peak = max(peak, held["logits"])
    return {**(saved or held), "logits": peak}


def _kind(operator: Mapping[str, Any], size: int, place: _TensorShapes) -> str:
    """Return the kind of a result of an operator: ``logits``, ``weights`` or ``blocks``."""
    if kind_of(operator).family.startswith(_HEAVY):
        *_, last = _shapes(operator["args"])
        logits = not operator["backward"] and last[-1] == place.vocab and place.logits_in(size)
        return "logits" if logits else "blocks"
    found = place.of(operator)
    return "blocks" if found == "logits" and not place.logits_in(size) else found


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of all tensors in the recorded arguments of an operator."""
    if isinstance(value, dict):
        if "t" in value:
            yield tuple(value["t"][0])
            return
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _shapes(each)
