"""Copies of sharded models: `copy.deepcopy`, pickling and tracing give the same result as for a whole model.

A copy has whole weights and none of the hooks that shard the model. A traced model has its own weights, where torch
would share them with the model; it may be called until the model is trained further.
"""

from __future__ import annotations

import copy
import functools
from typing import Any
from weakref import WeakKeyDictionary

from paceline.inprocess import hooks, import_hook
from paceline.train.unmodified.state import Spread
from paceline.train.unmodified.weights import followers

_OURS = ("torch.distributed.fsdp", "paceline.train")
_OF_FSDP = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
_traced: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # traced model -> optimizer steps when it was traced
_steps = [0]  # the number of optimizer steps


def patch(spread: Spread) -> None:
    """Patch torch's tracing and export to use whole copies of sharded models, and count optimizer steps."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *given: _steps.__setitem__(0, _steps[0] + 1))
    _patch_tracing(spread, spread.torch.jit, "trace", "script")
    for name, function in (("torch.export", "export"), ("torch.onnx", "export")):
        import_hook.install({name: functools.partial(_patch_tracing_of, spread, function)})


def patch_class(spread: Spread, kind: Any) -> None:
    """Patch a class made by FSDP2 so that deepcopy and pickle give unsharded weights.

    Moving or casting such a model in a way that FSDP2 cannot handle ends the program.
    """
    if "__reduce_ex__" in vars(kind):
        return
    convert = kind._apply

    @functools.wraps(convert)
    def _apply(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        for kind_of in {weight.dtype for weight in self.parameters()}:
            if function(spread.torch.zeros(1, dtype=kind_of)).dtype != kind_of:
                spread.refuse(
                    "the format of split weights is changed (half(), double(), to(dtype)); change it before the first "
                    "call in training, convert a copy.deepcopy() of the model, or use dp in place of shard"
                )
        if _changes_nothing(spread.torch, self, function):
            return self
        try:
            return convert(self, function, *args, **kwargs)
        except RuntimeError as error:
            if "swap" not in str(error):
                raise
        return spread.refuse(
            "a model with split weights is moved to another device or memory; move a copy.deepcopy() of the model, or "
            "use dp in place of shard"
        )

    kind._apply = _apply
    kind.__deepcopy__ = _deep_copied
    # pickle refuses to reduce an object to another class, so it stores a call of `copy.copy` with the whole copy
    kind.__reduce_ex__ = lambda self, protocol: (copy.copy, (_copied_with_attributes(self),))


def _changes_nothing(torch: Any, module: Any, function: Any) -> bool:
    """Return whether a conversion leaves the tensors of a module unchanged, such as ``cpu()`` on a CPU."""
    kinds = {(each.dtype, each.device) for each in (*module.parameters(), *module.buffers())}
    probes = [torch.zeros(1, dtype=kind, device=device) for kind, device in kinds]
    return all(function(probe) is probe and (probe.is_cuda or not probe.is_shared()) for probe in probes)


def check_current(spread: Spread, module: Any) -> None:
    """End the program if it calls a traced model whose original was trained after the tracing."""
    if _traced and _traced.get(module, _steps[0]) != _steps[0]:
        spread.refuse(
            "a traced model is called after its model was trained further; it has the weights of when it was traced. "
            "Trace it again, or use dp in place of shard"
        )


def _deep_copied(self: Any, memo: dict[int, Any]) -> Any:
    kind: Any = type(self).__bases__[1]  # the bases of FSDP2's class: FSDPModule, and the program's class
    found = kind.__new__(kind)
    memo[id(self)] = found
    state = {name: value for name, value in vars(self).items() if not _is_of_fsdp(name)}
    state = {name: _without_ours(value) if "hooks" in name else value for name, value in state.items()}
    vars(found).update(copy.deepcopy(state, memo))
    for part in found.modules():
        _strip(part)
    return found


def _copied_with_attributes(model: Any) -> Any:
    """Return a copy with whole weights and their attributes, which pickle stores, unlike `copy.deepcopy`."""
    found = copy.deepcopy(model)
    weights: dict[str, Any] = dict(found.named_parameters())
    for name, weight in model.named_parameters():
        vars(weights[name]).update(followers.attributes_of(weight))
    return found


def _strip(part: Any) -> None:
    """Remove the attributes and hooks of FSDP2 from a copied module."""
    for name in [name for name in vars(part) if _is_of_fsdp(name)]:
        delattr(part, name)
    for name in [name for name in vars(part) if "hooks" in name]:
        setattr(part, name, _without_ours(getattr(part, name)))
    if hasattr(part, "_init_flat_weights"):  # a recurrent layer has a list of its weights
        part._init_flat_weights()


def _is_of_fsdp(name: str) -> bool:
    return name.startswith("__composable_api_state_key") or name in _OF_FSDP


def _without_ours(hooks: Any) -> Any:
    """Return a dictionary of hooks without those of FSDP2 and Paceline; return other values unchanged."""
    if not isinstance(hooks, dict):
        return hooks
    return type(hooks)((key, hook) for key, hook in hooks.items() if not _module_of(hook).startswith(_OURS))


def _module_of(hook: Any) -> str:
    while isinstance(hook, functools.partial):
        hook = hook.func
    found = getattr(hook, "hook", hook)  # torch wraps some hooks in an object
    return str(getattr(found, "__module__", ""))


def _patch_tracing_of(spread: Spread, name: str, owner: Any) -> None:
    _patch_tracing(spread, owner, name)


def _patch_tracing(spread: Spread, owner: Any, *names: str) -> None:
    def traced(original: Any) -> Any:
        @functools.wraps(original)
        def trace(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(model, spread.torch.nn.Module) or not _is_split(model):
                return original(model, *args, **kwargs)
            found = original(copy.deepcopy(model), *args, **kwargs)
            if isinstance(found, spread.torch.nn.Module):
                _traced[found] = _steps[0]
            return found

        return trace

    for name in names:
        hooks.install(owner, name, traced(getattr(owner, name)))


def _is_split(model: Any) -> bool:
    return any(hasattr(weight, "full_tensor") for weight in model.parameters())
