"""The model and the training settings of a program, read from the record of its first step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.errors import UsageError
from paceline.plan.models.adapters import Adapted, AdapterPair, adapted_model, frozen_part, pairs_of
from paceline.plan.models.architecture import DESCRIBE_BY_NUMBERS, Kernels, Model, Transformer
from paceline.plan.models.counted_step import CountedStep, counted_step
from paceline.plan.models.module_tree import ModulePart, image_network_of, module_part, transformer_of

_NUMBERS = f"{DESCRIBE_BY_NUMBERS} --seq 4096"
_FORMATS = {"bfloat16": "bf16", "float16": "fp16"}
_ALL = 0.95  # least share of the weights that an optimizer must update for a valid plan
_ADAM_BYTES = 8.0


@dataclass(frozen=True, kw_only=True)
class CapturedProgram:
    """The model of a program and its training settings.

    Attributes:
        samples: Samples of one step of one rank.
        states: Bytes of a trained weight, of its gradient, and of its optimizer state.
        adapted: The trained part, if weights are frozen.
        told: Remarks for the user on what was recorded and what was assumed.
        counted: Kernels and bytes of its step; None if its kernels are fused or the step was not recorded.
    """

    model: Model
    samples: int
    precision: str
    kernels: Kernels
    optimizer: str
    states: tuple[float, float, float]
    adapted: Adapted
    told: tuple[str, ...]
    counted: CountedStep | None = None


def read_program(note: Mapping[str, Any], numbers: Mapping[str, Any]) -> CapturedProgram:
    """Return the model and the settings of a program, from the record of its first step.

    Args:
        note: The record, as `monitor.first_step` wrote it.
        numbers: Fields of the model that the user gave; they override those of the record.

    Raises:
        UsageError: The program does not train all weights or adapters of one model, on tokens or images.
    """
    model, name = note["model"], note["model"]["class"]
    if not note["optimizers"]:
        raise UsageError(f"{name} ran, but no torch.optim optimizer took a step; {_NUMBERS}")
    if note["trained_elsewhere"]:
        raise _refused(
            note,
            f"and {note['trained_elsewhere']:,} weights of other modules are trained too, but "
            f"paceline plan supports only one model",
        )
    whole = math.isclose(note["trained"], model["weights"], rel_tol=1 - _ALL)
    module = module_part(model["anatomy"])
    pairs = [] if whole else _pairs(note, module)
    found, samples = _network(note, frozen_part(module) if pairs else module, numbers)
    counted = None
    if isinstance(found, Transformer) and whole and not any(numbers.values()):
        counted = counted_step(note, found, samples * found.seq)
    return CapturedProgram(
        model=found,
        samples=samples * (note["micro_steps"] or 1),
        precision=_FORMATS.get(note["autocast"] or model["dtype"], "tf32" if note["tf32"] else "fp32"),
        kernels="fused" if note["compiled"] else "eager",
        optimizer=" and ".join(each["class"] for each in _all(note)),
        states=(model["trained_bytes"], model["trained_bytes"], _state_bytes(note)),
        adapted=_beside(note, pairs, found) if pairs else Adapted(),
        told=tuple(_assumptions(note, name, counted)),
        counted=counted,
    )


def _pairs(note: Mapping[str, Any], module: ModulePart) -> list[AdapterPair]:
    try:
        return pairs_of(module)
    except UsageError as reason:
        raise _refused(note, f"which is supported only for low-rank pairs in blocks: {reason}") from None


def _beside(note: Mapping[str, Any], pairs: list[AdapterPair], found: Model) -> Adapted:
    if not isinstance(found, Transformer):
        raise _refused(note, "and adapters are supported only for transformers")
    return adapted_model(pairs, found, note["trained"], note["model"]["frozen_bytes"])


def _refused(note: Mapping[str, Any], why: str) -> UsageError:
    model = note["model"]
    return UsageError(
        f"{model['class']} has {model['weights']:,} weights, of which {note['trained']:,} are trained, {why}; "
        f"{_NUMBERS}. If the program trains adapters, add --lora 16"
    )


def _network(note: Mapping[str, Any], module: ModulePart, numbers: Mapping[str, Any]) -> tuple[Model, int]:
    """Return the model of a recorded program, and the number of samples in one of its forward passes."""
    name, batch = note["model"]["class"], note["batch"]
    products = note.get("products", [])
    if batch is not None and not batch["whole_numbers"] and any(each["kind"] == "convolution" for each in products):
        samples = batch["shape"][0]
        return image_network_of(module, name, products, note["kept"], samples), samples
    samples, seq = _batch(note, name, numbers.get("seq"))
    given = {key: value for key, value in numbers.items() if value is not None and key not in ("params", "seq")}
    return _with_output(replace(transformer_of(module, name, seq), **given), note), samples


def _with_output(found: Transformer, note: Mapping[str, Any]) -> Transformer:
    """Return the model. If the program classifies whole samples, the cost of the output layer is set to almost 0."""
    wide = [each for each in note.get("products", []) if each["channels"] == found.vocab]
    made = [shape for shape in note.get("made", []) if len(shape) > 1]  # outputs other than a scalar loss
    if found.tied and made and not wide and not any(found.vocab in shape for shape in made):
        return replace(found, head_share=1.0 / found.seq, causal=False)
    return found


def _batch(note: Mapping[str, Any], name: str, seq: int | None) -> tuple[int, int]:
    batch = note["batch"]
    if batch is None or not batch["whole_numbers"] or len(batch["shape"]) != 2:
        seen = "no tensor" if batch is None else f"{batch['dtype']} of shape {batch['shape']}"
        raise UsageError(
            f"{name} was given {seen}; supported are tokens of shape (samples, length), and images for convolutions; "
            f"{_NUMBERS}"
        )
    samples, length = batch["shape"]
    return samples, seq or length


def _state_bytes(note: Mapping[str, Any]) -> float:
    weights: int = sum(each["weights"] for each in note["optimizers"])
    held: list[float] = [each["weights"] * _known(each["state_bytes"]) for each in note["optimizers"]]
    return sum(held) / weights


def _known(state_bytes: float | None) -> float:
    return _ADAM_BYTES if state_bytes is None else state_bytes


def _assumptions(note: Mapping[str, Any], name: str, counted: CountedStep | None) -> Iterator[str]:
    optimizers = " and ".join(f"{each['class']} ({_known(each['state_bytes']):g} B per weight)" for each in _all(note))
    steps = "1 (assumed: not seen)" if note["micro_steps"] is None else note["micro_steps"]
    compiled = "compiled" if note["compiled"] else "not compiled"
    yield (
        f"captured: {name}, {optimizers}, batch {note['batch']['shape']} x {steps}, weights {note['model']['dtype']}, "
        f"autocast {note['autocast'] or 'none'}, {compiled}"
    )
    for each in _all(note):
        if each["state_bytes"] is None:
            state = f"{_ADAM_BYTES:g} B per weight as for Adam"
            yield f"the state of {each['class']} could not be measured ({each['reason']}); assumed: {state}"
    if counted is not None:
        kernels = counted.forward_kernels + counted.backward_kernels
        moved = (counted.forward_moved + counted.backward_moved) / 1e3
        yield f"counted: {kernels:.0f} kernels per block, which move {moved:.0f} kB per token besides matrix products"


def _all(note: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(note["optimizers"])
