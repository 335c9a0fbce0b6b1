"""Pipeline stages of Hugging Face's models: a stage is the model without the layers of the other stages.

Such a model has one list of layers (in its base model, or in a child of it, such as the encoder of BERT), modules
before it (embeddings, dropout) and modules after it (the last norm, the head). A stage keeps all names, so that its
parameters are called as in the model. It computes positions and masks itself. All stages but the first get the
activations of the stage before them: language models in place of the embedded tokens, vision models in place of the
pixels, which their stand-ins for the embeddings return.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.parallel.balance import counted

_IDS, _PIXELS = "input_ids", "pixel_values"  # the input of the first stage; the other inputs go to all stages
_EMBEDDED = "inputs_embeds"
_OF_THE_LAST = ("labels",)
_FINAL = "final"  # the name of a module after the layers begins with this, though OPT registers it before them


def is_hugging_face(model: Any) -> bool:
    """Return whether a model is one of Hugging Face's transformers."""
    return hasattr(model, "base_model_prefix") and hasattr(model, "get_input_embeddings")


def has_stages(model: Any) -> bool:
    """Return whether a model can be split into stages: it is of Hugging Face, with one list of layers.

    Language models take embedded tokens. In vision models, all layers have the same shapes, so that each layer can get
    the activations of any other.
    """
    if not is_hugging_face(model):
        return False
    base = _base(model)
    own = [module for module in {model, base} if any(True for _ in module.parameters(recurse=False))]
    listed, inputs = _listed(base), signature(base.forward).parameters
    if own or listed is None:
        return False
    shapes = {tuple(p.shape for p in layer.parameters()) for layer in base.get_submodule(listed).children()}
    return _EMBEDDED in inputs or _PIXELS in inputs and len(shapes) == 1


def is_of_stage(module: Any) -> bool:
    """Return whether a module was made for a stage, so that its output is not that of the module with its name."""
    return hasattr(module, "is_of_stage")


def costs_of(model: Any) -> list[float]:
    """Return the forward FLOPs of each layer per position; those of the head count for the last layer."""
    base = _base(model)
    costs = [counted(layer) for layer in base.get_submodule(_listed(base) or "")]
    outside = {id(part) for part in base.modules()}
    costs[-1] += sum(counted(child) for child in model.children() if id(child) not in outside)
    return costs


def stage_of(model: Any, layers: Sequence[int], *, first: bool, last: bool) -> Any:
    """Return a stage: a shallow copy of a model with some of its layers, which it shares with the model.

    Args:
        model: A model for which `has_stages` is true.
        layers: The indices of the layers of the stage.
        first: Whether the stage has the modules before the layers.
        last: Whether the stage has the modules after the layers.

    Returns:
        A module. Its forward takes token ids or pixels (the first stage) or activations, and further inputs as
        keywords. It returns activations, or the tensors in the output of the model (the last stage), for `restored`.
    """
    base = _base(model)
    inputs = signature(base.forward).parameters
    given = _IDS if first and _IDS in inputs else _EMBEDDED if _EMBEDDED in inputs else _PIXELS
    own = _without(base, (_listed(base) or "").split("."), layers, first=first, last=last)
    stage = own if base is model else _shallow(model)
    if base is not model:
        others = {} if last else {name: _passing(child) for name, child in stage._modules.items()}
        stage._modules.update({**others, model.base_model_prefix: own})
    call = stage.forward if last else own.forward
    kind = "" if first else type(model).__name__
    stage.forward = partial(_forward, call, given, form=_form(stage) if last else None, kind=kind)
    return stage


def joined(stages: Sequence[Any]) -> Any:
    """Return one module with the layers of some stages of `stage_of`, under the names of the model."""
    found = _shallow(stages[0])
    for stage in stages[1:]:
        _add(found, stage)
    return found


def _add(module: Any, other: Any) -> None:
    """Replace the stand-ins among the children of a module by the children of another copy of the module."""
    from torch import nn

    for name, child in other.named_children():
        own = module._modules.get(name)
        if child is own or (type(child) is nn.Identity and not any(True for _ in child.parameters())):
            continue
        if type(own) is nn.Identity:
            module._modules[name] = child
        else:
            module._modules[name] = _shallow(own)
            _add(module._modules[name], child)


def restored(stage: Any, value: Any) -> Any:
    """Return the output of the whole model, made of the tensors that its last stage returned."""
    form = getattr(stage, "output_form", None)
    if not form:
        return value
    values = value if isinstance(value, tuple) else (value,)
    return form["kind"](**dict(zip(form["names"], values, strict=True)))


def divided(inputs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the input of the first stage, and the inputs of all stages by their names.

    Raises:
        UsageError: There are neither token ids nor pixels.
    """
    name = next((name for name in (_IDS, _PIXELS) if name in inputs), None)
    if name is None:
        raise UsageError(
            f"pp: the inputs are {', '.join(map(str, inputs))}; stages of a Hugging Face model need {_IDS} or "
            f"{_PIXELS} among them"
        )
    return inputs[name], {key: value for key, value in inputs.items() if key != name}


def _base(model: Any) -> Any:
    return getattr(model, model.base_model_prefix, model)


def _listed(base: Any) -> str | None:
    """Return the name of the list of layers of a base model; None if there is none or there are several."""
    from torch import nn

    children = list(base.named_children())
    inner = [(f"{name}.{below}", part) for name, child in children for below, part in child.named_children()]
    for candidates in (children, inner):
        lists = [name for name, child in candidates if isinstance(child, nn.ModuleList) and len(child)]
        if lists:
            return lists[0] if len(lists) == 1 else None
    return None


def _form(stage: Any) -> dict[str, Any]:
    """Return a dictionary, also kept on the stage, that a call fills with the class and the names of the output."""
    stage.output_form = {}
    return stage.output_form


def _forward(call: Any, name: str, value: Any, *, form: dict[str, Any] | None, kind: str, **given: Any) -> Any:
    """Call a stage; return the activations for the next stage, or with `form` the tensors of the model's output.

    Raises:
        UsageError: A stage of a model of the class `kind` needs more from the stage before it than activations.
    """
    dropped = (_IDS, _EMBEDDED, *(() if form is not None else _OF_THE_LAST))
    given = {name: value for name, value in given.items() if name not in dropped}
    own = {} if name == _PIXELS else {"use_cache": False}
    try:
        output = call(**{name: value}, **{**given, **own, "return_dict": True})
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if not kind:
            raise
        raise UsageError(
            f"pp: {kind} cannot be split into stages, because a stage fails with the activations of the stage before "
            f"it ({error}); use shard or tp instead of pp"
        ) from error
    if form is None:
        return output[0]
    tensors = {name: value for name, value in output.items() if hasattr(value, "shape")}
    form.update(kind=type(output), names=list(tensors))
    return next(iter(tensors.values())) if len(tensors) == 1 else tuple(tensors.values())


def _without(module: Any, path: Sequence[str], layers: Sequence[int], *, first: bool, last: bool) -> Any:
    """Return a shallow copy of a module with stand-ins for the modules of other stages.

    Args:
        module: The base model, or the child with the list of layers.
        path: The names of the modules from there to the list of layers.
        layers: The indices of the layers that are kept.
        first: Whether the modules before the layers are kept.
        last: Whether the modules after the layers are kept.
    """
    from torch import nn

    found, before = _shallow(module), True
    for name, child in module.named_children():
        if name == path[0]:
            before = False
            if len(path) > 1:
                found._modules[name] = _without(child, path[1:], layers, first=first, last=last)
            else:
                own = child[layers[0]]
                kept = [layer if place in layers else _passing_like(layer, own) for place, layer in enumerate(child)]
                found._modules[name] = nn.ModuleList(kept)
        elif not (first if before and not name.startswith(_FINAL) else last) and (
            isinstance(child, nn.Dropout) or "norm" in name or any(True for _ in child.parameters())
        ):
            found._modules[name] = _nothing() if isinstance(child, nn.Embedding) else _passing(child)
    return found


def _shallow(module: Any) -> Any:
    """Return a copy of a module that shares children, parameters, buffers and hooks; later ones are its own."""
    kind: Any = type(module).__bases__[1] if hasattr(module, "_get_fsdp_state") else type(module)  # of FSDP2: the 2nd
    found = kind.__new__(kind)
    found.__dict__.update(vars(module))
    for name, value in vars(module).items():
        if name in ("_modules", "_parameters", "_buffers") or "hooks" in name:
            setattr(found, name, copy.copy(value))
    found.is_of_stage = True
    return found


def _passing(module: Any) -> Any:
    """Return a stand-in for a module of another stage. It returns its input and has the module's plain attributes."""
    from torch import nn

    plain = (str, int, float, bool, type(None))
    found = nn.Identity()
    found.__dict__.update({name: value for name, value in vars(module).items() if isinstance(value, plain)})
    found.__dict__.update({name: _outline(child) for name, child in module.named_children()})
    found.forward, found.is_of_stage = _first, True
    return found


def _passing_like(layer: Any, own: Any) -> Any:
    """Return a stand-in for a layer, which returns its input in the form in which another layer returns its output.

    In some models, layers return a tuple, such as the activations and the weights of the attention. The form is found
    by a call of a copy of the other layer on the meta device, which computes no values.

    Args:
        layer: A layer of another stage.
        own: A layer of this stage.
    """
    import torch
    from torch.utils._pytree import tree_map

    found, rest = _passing(layer), list[Any]()
    tensors = [*own.parameters(), *own.buffers()]
    double = copy.deepcopy(own, {id(each): each.to("meta") for each in tensors})

    def forward(*given: Any, **named: Any) -> Any:
        value = _first(*given, **named)
        if not rest:
            args, kwargs = tree_map(lambda each: each.to("meta") if hasattr(each, "is_meta") else each, (given, named))
            output = None
            with torch.no_grad(), suppress(RuntimeError):  # not all operators have meta kernels
                output = double(*args, **kwargs)
            rest.append((None,) * (len(output) - 1) if isinstance(output, tuple) else None)
        return value if rest[0] is None else (value, *rest[0])

    found.forward = forward
    return found


def _outline(module: Any) -> Any:
    """Return the names of a module's children and parameters, with empty tensors, as models read their formats."""
    inside = {name: _outline(child) for name, child in module.named_children()}
    own = {name: each.new_empty(0) for name, each in module.named_parameters(recurse=False)}
    return SimpleNamespace(**inside, **own)


def _nothing() -> Any:
    """Return a stand-in for an embedding of another stage. It returns 0, because the result is added."""
    from torch import nn, zeros

    found = nn.Identity()
    found.forward, found.is_of_stage = lambda *_, **__: zeros(()), True
    return found


def stand_in() -> Any:
    """Return a stand-in for a module of another stage that has only its name. It returns its input."""
    from torch import nn

    found = nn.Identity()
    found.is_of_stage = True
    return found


def _first(*values: Any, inputs_embeds: Any = None, **__: Any) -> Any:
    """Return the activations, which are the first input that is not None; embeddings can get them by keyword."""
    return next((value for value in (inputs_embeds, *values) if value is not None), None)
