"""Pipeline parallelism (pp): each rank holds stages of layers, through which micro-batches pass (torch's pipelining).

With p stages and m micro-batches, GPipe and 1F1B idle (p - 1) / (m + p - 1) of a step. 1F1B keeps the activations of at
most p micro-batches instead of m. The interleaved schedule, with v stages on each rank, idles about 1/v of that.
Zero-bubble computes gradients of weights while other schedules wait (Narayanan et al. 2021; Qi et al. 2023). Only the
activations at each cut are sent. Each rank keeps 1/p of the layers' memory.

The model must be an `nn.Sequential` whose children are the layers, or a model of Hugging Face with one list of layers
(`hugging_face.py`). The cuts follow the cost of the layers: counted as two FLOPs for each weight of a linear layer or
convolution, or measured by rank 0 on a sample.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.parallel import hugging_face, tied_parameters
from paceline.train.parallel.balance import counted, cut

_MOST_SHAPES = 8  # largest number of input shapes whose schedules are kept
_CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
}
_BALANCES = ("counted", "measured")
_STAGES_EACH = {"interleaved": 2, "zero-bubble": 2}  # number of stages of one rank
_preparing: list[Any] = []  # stages that run their module only to find the output shapes


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The pipeline schedule and the cost of layers; table ``[pipeline]`` of a recipe."""

    schedule: str = "1f1b"
    balance: str = "counted"  # how the cost of layers is found: counted or measured

    def __post_init__(self) -> None:
        if self.balance not in _BALANCES:
            raise UsageError(f"pipeline.balance = {self.balance!r} is not allowed; it takes {', '.join(_BALANCES)}")
        if self.schedule not in _CLASSES:
            raise UsageError(f"pipeline.schedule = {self.schedule!r} is not allowed; it takes {', '.join(_CLASSES)}")

    @property
    def stages_each(self) -> int:
        """The number of stages on one rank."""
        return _STAGES_EACH.get(self.schedule, 1)

    def check(self, ranks: int, micro_batches: int) -> None:
        """Check that there are enough micro-batches for the schedule.

        Args:
            ranks: The number of ranks of the pipeline.
            micro_batches: The number of micro-batches of a step.

        Raises:
            UsageError: There are too few micro-batches, or their number is not a multiple of `ranks` and the schedule
                needs that.
        """
        if micro_batches < ranks or (self.stages_each > 1 and micro_batches % ranks):
            raise UsageError(
                f"pp={ranks} with {micro_batches} micro-batches: {self.schedule} takes "
                f"{'a multiple of' if self.stages_each > 1 else 'at least'} {ranks}; "
                f"set memory.micro_batches (--accumulate) to {2 * ranks}"
            )


def stages_of(
    model: Any, rank: int, ranks: int, pipeline: Pipeline, costs: Sequence[float] | None = None
) -> tuple[list[tuple[int, Any]], list[tied_parameters.Tied]]:
    """Return this rank's stages: their numbers, and modules whose parameters keep their names in the model.

    Also return the parameters that several stages of the pipeline share, the same on all ranks.

    Args:
        model: An `nn.Sequential` of its layers, or a language model of Hugging Face.
        rank: The index of this rank in the pipeline.
        ranks: The number of ranks of the pipeline.
        pipeline: The schedule.
        costs: The costs of the layers, the same on all ranks; None to count them.

    Raises:
        UsageError: The model is neither, has too few layers, or stages share a parameter in an unsupported way.
    """
    from torch import nn

    has_stages = hugging_face.has_stages(model)
    if not has_stages and not isinstance(model, nn.Sequential):
        raise UsageError(
            f"pp={ranks}: {type(model).__name__} is neither an nn.Sequential nor a model of Hugging Face with one list "
            "of layers of equal shapes, so it is unknown where to split it; write it as a Sequential of its layers, or "
            "use shard or tp instead of pp"
        )
    if not costs:
        of_layers = [counted(layer) for layer in model._modules.values()]
        costs = hugging_face.costs_of(model) if has_stages else of_layers
    count = ranks * pipeline.stages_each
    if len(costs) < count:
        raise UsageError(
            f"pp={ranks}: {pipeline.schedule} makes {count} stages, and the model has {len(costs)} layers; "
            f"use at most pp={len(costs) // pipeline.stages_each or 1}"
        )
    stages = _parts(model, cut(costs, count), has_stages=has_stages)
    tied = tied_parameters.find(model, stages, ranks)
    for number in range(rank, count, ranks):
        for each in reversed(tied):  # what is registered last comes first
            if number in each.stages:
                tied_parameters.register(stages[number], each, hugging_face.stand_in)
        stages[number].register_forward_pre_hook(_make_input_gradients_contiguous)
        stages[number].register_forward_hook(_make_output_contiguous)
        if number < count - 1 and not has_stages:
            stages[number].register_forward_hook(_check_output, prepend=True)
    return [(number, stages[number]) for number in range(rank, count, ranks)], tied


def _parts(model: Any, cuts: Sequence[range], *, has_stages: bool) -> list[Any]:
    from torch import nn

    if has_stages:
        last = len(cuts) - 1
        return [
            hugging_face.stage_of(model, part, first=number == 0, last=number == last)
            for number, part in enumerate(cuts)
        ]
    layers = list(model._modules.items())  # a layer can occur several times
    _check_buffers([{id(layers[i][1]): layers[i] for i in part} for part in cuts])
    return [nn.Sequential(OrderedDict(layers[i] for i in part)) for part in cuts]


def _check_buffers(stages: Sequence[Mapping[int, tuple[str, Any]]]) -> None:
    """Check that no layer that is in several stages has buffers, because each stage would update its own.

    Args:
        stages: For each stage, the names and modules of its layers, by the id of the module.

    Raises:
        UsageError: A layer has buffers.
    """
    seen: set[int] = set()
    for layers in stages:
        for number, (name, layer) in layers.items():
            if number in seen and any(True for _ in layer.buffers()):
                raise UsageError(
                    f"pp: layer {name} is in several stages and has buffers, of which each stage would have its own; "
                    "give each stage its own layer, or use shard or tp instead of pp"
                )
        seen.update(layers)


def _check_output(stage: Any, given: Any, output: Any) -> None:
    """Check that a stage returns a single tensor. The next stage is an nn.Sequential, which takes one input.

    Raises:
        UsageError: The stage returns another type.
    """
    import torch

    if not isinstance(output, torch.Tensor):
        last = list(stage._modules)[-1]
        raise UsageError(
            f"pp: layer {last} returns a {type(output).__name__}, but the last layer of a stage must return a single "
            "tensor; combine its outputs into one tensor, or use shard or tp instead of pp"
        )


def _make_output_contiguous(stage: Any, given: Any, output: Any) -> Any:
    """Return the output of a stage as a contiguous tensor, because gloo and NCCL send only contiguous tensors."""
    import torch

    return output.contiguous() if isinstance(output, torch.Tensor) else output


def _make_input_gradients_contiguous(stage: Any, given: tuple[Any, ...]) -> None:
    """Make the gradient of a stage's input contiguous, because it is sent to the previous stage.

    The hook is registered once for each input tensor, because torch uses the same tensors in each step.
    """
    import torch

    for each in given:
        if isinstance(each, torch.Tensor) and each.requires_grad and not each._backward_hooks:
            each.register_hook(lambda gradient: gradient.contiguous())


def joined(stages: Sequence[Any]) -> Any:
    """Return one module with the layers of some stages, under the names of the whole model; it cannot be called."""
    from torch import nn

    if not isinstance(stages[0], nn.Sequential):
        return hugging_face.joined(stages)
    return nn.Sequential(OrderedDict(layer for stage in stages for layer in stage._modules.items()))


def is_preparing() -> bool:
    """Return whether a stage is running its module only to find the output shapes."""
    return bool(_preparing)


def _stage_class() -> Any:
    """Return torch's pipeline stage class, changed so that finding the output shapes leaves buffers unchanged.

    torch runs the module on uninitialized memory to find the shapes, and BatchNorm would keep the statistics of that
    memory.
    """
    from torch.distributed import pipelining

    class Stage(pipelining.PipelineStage):
        def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
            before = [(buffer, buffer.clone()) for buffer in self.submod.buffers()]
            _preparing.append(self)
            try:
                found = super()._prepare_forward_infra(*args, **kwargs)
            finally:
                _preparing.pop()
            for buffer, value in before:
                buffer.data.copy_(value)  # hidden from autograd, which still needs that forward pass
            return found

    return Stage


def _sent(value: Any, source: int, group: Any, device: Any) -> Any:
    """Return a value that one rank of the pipeline computed, on all ranks of the pipeline."""
    import torch

    first = torch.distributed.get_global_rank(group, source)
    found = [None if value is None else value if not hasattr(value, "shape") else (value.shape, value.dtype)]
    torch.distributed.broadcast_object_list(found, first, group)
    if not (isinstance(found[0], tuple) and len(found[0]) == 2 and isinstance(found[0][1], torch.dtype)):
        return found[0]
    tensor = torch.empty(*found[0][:1], dtype=found[0][1], device=device) if value is None else value.contiguous()
    torch.distributed.broadcast(tensor, first, group=group)
    return tensor


class Stages:
    """This rank's pipeline stages and the schedule that runs them."""

    def __init__(
        self,
        stages: Sequence[tuple[int, Any]],
        group: Any,
        device: Any,
        plan: tuple[Pipeline, int],
        copies: tied_parameters.Copies,
    ) -> None:
        """Create the stages and their schedule.

        Args:
            stages: As `stages_of` returns them, with any further axes applied.
            group: Process group of the pipeline.
            device: `torch.device` of this rank.
            plan: The pipeline settings and the number of micro-batches.
            copies: The parameters that this rank shares with others.
        """
        from torch.distributed import get_world_size

        self.modules, self.copies = list(stages), copies
        self._made_of = (group, device, plan, copies)
        self._pipeline, self._micro_batches = plan
        self._loss: Callable[[Any, Any], Any] | None = None
        self._schedules: dict[Any, Any] = {}  # by the shape of the inputs
        self._count = get_world_size(group) * self._pipeline.stages_each
        numbers = [number for number, _ in stages]
        self.has_first, self.has_last = numbers[0] == 0, numbers[-1] == self._count - 1

    def _schedule_for(self, shape: Any) -> Any:
        """Return the schedule for inputs of a shape: torch's stages keep the shapes of their first inputs."""
        from torch.distributed import pipelining

        if shape not in self._schedules:
            if len(self._schedules) >= _MOST_SHAPES:
                del self._schedules[next(iter(self._schedules))]
            group, device, _, _ = self._made_of
            made = [_stage_class()(module, number, self._count, device, group=group) for number, module in self.modules]
            kind = getattr(pipelining, _CLASSES[self._pipeline.schedule])
            row = made if self._pipeline.stages_each > 1 else made[0]
            # Gradients are summed, not averaged: the loss is already divided.
            self._schedules[shape] = kind(row, self._micro_batches, loss_fn=self._loss_of, scale_grads=False)
        return self._schedules[shape]

    def again(self) -> Stages:
        """Return the same stages with a new schedule, for batches of another size."""
        return Stages(self.modules, *self._made_of)

    def run(self, inputs: Any, target: Any, loss: Callable[[Any, Any], Any]) -> list[Any]:
        """Run the forward and backward passes of a batch.

        Args:
            inputs: Tensor with samples in dimension 0, used on the rank of the first stage. For a Hugging Face model
                also a mapping: its `input_ids` or `pixel_values` are used there, and its other values on all ranks.
            target: Tensor with samples in dimension 0; used on the rank of the last stage.
            loss: Returns a scalar for an output and a target.

        Returns:
            The losses of the micro-batches on the rank of the last stage; an empty list on other ranks.
        """
        if not hasattr(target, "shape"):
            raise UsageError(
                f"pp: the target is a {type(target).__name__}, but it must be one tensor with samples in dimension 0; "
                "combine its parts into one tensor, or use shard or tp instead of pp"
            )
        self._loss = loss
        losses: list[Any] = []
        first, others = _apart(inputs)
        if not hasattr(first, "shape"):
            raise UsageError(
                f"pp: the input is a {type(first).__name__}, but it must be one tensor with samples in dimension 0; "
                "combine its parts into one tensor, or use shard or tp instead of pp"
            )
        given = (first,) if self.has_first else ()
        wanted = {"target": target, "losses": losses} if self.has_last else {}
        schedule = self._schedule_for(getattr(first, "shape", None))
        with self.copies.summed():
            schedule.step(*given, return_outputs=False, **wanted, **others)
        return losses

    def forward(self, inputs: Any) -> Any:
        """Return the output of the last stage for inputs of any size, without gradients; None on ranks of other stages.

        The stages run one after the other. All ranks must call this method.
        """
        import torch

        modules, ranks = dict(self.modules), torch.distributed.get_world_size(self._made_of[0])
        count = ranks * self._pipeline.stages_each
        value, others = _apart(inputs)
        for number in range(count):
            if number in modules:
                value = modules[number](value, **others)
            if number < count - 1:
                value = _sent(value if number in modules else None, number % ranks, self._made_of[0], self._made_of[1])
        return hugging_face.restored(self.modules[-1][1], value) if self.has_last else None

    def _loss_of(self, output: Any, target: Any) -> Any:
        if self._loss is None:
            raise RuntimeError("the pipeline has no loss before its first batch")
        return self._loss(hugging_face.restored(self.modules[-1][1], output), target)


def _apart(inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Return the input of the first stage, and the inputs of all stages by their names."""
    return hugging_face.divided(inputs) if isinstance(inputs, Mapping) else (inputs, {})
