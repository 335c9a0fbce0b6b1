"""Tied parameters of pipeline stages, such as a token embedding that is also the head of a language model.

Each stage that uses a tied parameter has a copy of it, under the first of the parameter's names in the model. After the
backward pass, the gradients of the copies are summed over these stages. All copies therefore get the same updates and
stay equal (Shoeybi et al. 2019, Megatron-LM, for embeddings).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.ranks.world import World, set_timeout


@dataclass(frozen=True)
class Tied:
    """A parameter that several pipeline stages use.

    Attributes:
        name: Its first name in the model.
        parameter: The parameter of the whole model.
        stages: The numbers of the stages, in order.
    """

    name: str
    parameter: Any
    stages: tuple[int, ...]

    def places(self, count: int) -> tuple[int, ...]:
        """Return the positions of the ranks that hold the stages, in a pipeline of `count` ranks."""
        return tuple(number % count for number in self.stages)


def find(model: Any, stages: Sequence[Any], ranks: int) -> list[Tied]:
    """Return the parameters of a model that several of its stages use.

    Args:
        model: The whole model.
        stages: The modules of all stages.
        ranks: The number of ranks of the pipeline.

    Raises:
        UsageError: Two of the stages are on one rank, or the parameter has a gradient hook, which would get the
            gradient of one stage.
    """
    users: dict[int, list[int]] = {}
    for number, stage in enumerate(stages):
        for parameter in stage.parameters():
            users.setdefault(id(parameter), []).append(number)
    found = [Tied(name, each, tuple(users.get(id(each), ()))) for name, each in model.named_parameters()]
    tied = [each for each in found if len(each.stages) > 1]
    for each in tied:
        where = " and ".join(map(str, each.stages))
        if len(set(each.places(ranks))) < len(each.stages):
            raise UsageError(
                f"pp: {each.name} is shared by stages {where}, and one rank has two of them; give each layer its own "
                "parameters, use the schedule 1f1b, or use shard instead of pp"
            )
        if each.parameter._backward_hooks or getattr(each.parameter, "_post_accumulate_grad_hooks", None):
            raise UsageError(
                f"pp: {each.name} is shared by stages {where} and has a gradient hook, which would get the gradient "
                "of one stage; put the hook on an output of a module instead"
            )
    return tied


def register(stage: Any, tied: Tied, stand_in: Callable[[], Any]) -> None:
    """Register a tied parameter under its first name in the model, before the other parameters of a stage.

    Args:
        stage: A stage that uses the parameter under another name.
        tied: The parameter.
        stand_in: Returns a module that leaves activations as they are, for modules of the name that the stage lacks.
    """
    if any(name == tied.name for name, _ in stage.named_parameters()):
        return
    *path, last = tied.name.split(".")
    module = stage
    for name in path:
        if name not in module._modules:
            module._modules = {name: stand_in(), **module._modules}
        module = module._modules[name]
    module._parameters = {last: tied.parameter, **module._parameters}


class Copies:
    """The tied parameters of this rank, and the ranks with other copies of them.

    Args:
        tied: The tied parameters of the model, the same on all ranks.
        held: The module with the parameters of this rank, under their first names in the model.
        world: The ranks.
    """

    def __init__(self, tied: Sequence[Tied], held: Any, world: World) -> None:
        own = dict(held.named_parameters())
        self._copies: dict[str, tuple[Any, Any, bool]] = {}  # by name: the parameter, its ranks, whether it is repeated
        groups: dict[tuple[int, ...], Any] = {}
        mesh, axis = world.mesh.mesh, list(world.mesh.mesh_dim_names).index("pp")
        pipelines = mesh.movedim(axis, -1).reshape(-1, world.layout.pp).tolist()
        for each in tied:
            places = each.places(world.layout.pp)
            if places not in groups:
                groups[places] = _group([[pipeline[place] for place in places] for pipeline in pipelines])
                set_timeout(filter(None, [groups[places]]), world.timeout_s)
            if world.position("pp") in places and each.name not in own:
                raise UsageError(
                    f"pp: {each.name} is shared by stages in an unsupported way; give each layer its own parameters, "
                    "use the schedule 1f1b, or use shard instead of pp"
                )
            if each.name in own:
                self._copies[each.name] = own[each.name], groups[places], world.position("pp") != places[0]

    def group_of(self, name: str) -> Any:
        """Return the process group of the ranks with a copy of a parameter; None if it is not tied."""
        return self._copies[name][1] if name in self._copies else None

    def repeated(self) -> set[str]:
        """Return the names of the parameters that the norm of all gradients counts on another rank."""
        return {name for name, (_, _, is_repeated) in self._copies.items() if is_repeated}

    @contextmanager
    def summed(self) -> Iterator[None]:
        """Sum the gradients that the copies get inside the context. All ranks with copies must enter the context.

        Raises:
            UsageError: A copy gets no gradient.
        """
        import torch

        trained = [(name, each, group) for name, (each, group, _) in self._copies.items() if each.requires_grad]
        before = [each.grad for _, each, _ in trained]
        for _, each, _ in trained:
            each.grad = None
        yield
        for (name, each, group), earlier in zip(trained, before, strict=True):
            if each.grad is None:
                raise UsageError(
                    f"pp: stages share {name}, but the loss does not use it in all of them; use shard or dp"
                )
            if not each.grad.is_contiguous():
                each.grad = each.grad.contiguous()
            torch.distributed.all_reduce(getattr(each.grad, "_local_tensor", each.grad), group=group)
            if earlier is not None:
                each.grad += earlier


def _group(ranks: Sequence[Sequence[int]]) -> Any:
    """Return the process group of this rank among groups that all ranks create; None if it is in none of them."""
    import torch

    groups = [torch.distributed.new_group(list(each)) for each in ranks]
    rank = torch.distributed.get_rank()
    return next((group for group, members in zip(groups, ranks, strict=True) if rank in members), None)
