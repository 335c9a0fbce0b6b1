"""First-step capture: record what a program trains, write it to a note at the first step, and end the process there.

    first forward of a training module whose parameters an optimizer has  ──> write the note
    first `Optimizer.step`, before it acts                                ──> add the micro-steps to the note; exit

The process ends with ``os._exit``: no handler and no ``finally`` of the program runs, so the program saves no result of
the skipped training. Until then ``torch.save`` does nothing. With real weights (``PACELINE_CATCH_REAL=1``) the process
ends in the first forward, at the first submodule; a model with convolutions ends after this forward.

With ``PACELINE_CATCH_STEP=1`` the first step runs, and every operator of the second step is counted (`Tally`). Then the
capture takes more batches from the loader, without any of its own torch modes, to measure the batch time. With
``PACELINE_CATCH_STEP=gpu`` the process ends where it ends without this setting. The operators are those of the first
forward and backward pass on a GPU, with autocast (`MetaAutocast`); the optimizer's come from a step on a small weight.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from paceline.inprocess import import_hook
from paceline.inprocess.first_step import batches, meta_device, module_tree
from paceline.inprocess.first_step.autocast import MetaAutocast
from paceline.inprocess.first_step.operator_counter import Tally
from paceline.inprocess.first_step.saved_tensors import Kept

SCHEMA = "paceline.caught/1"
_MOST_MICRO_STEPS = 512  # micro-steps without a step of a torch optimizer: the parameters are updated in another way
_TWIN = 64  # width of the small test weight that shows an optimizer's state size


class _Seen:
    """What the first-step capture has seen of the program so far; changed only in the thread that imported torch."""

    def __init__(self, path: str, real: bool) -> None:
        self.path, self.real, self.owner = path, real, os.getpid()
        self.depth = 0
        self.looking = False  # a copy of an optimizer makes a test step
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled = False
        self.autocast: list[str | None] = []
        self.module: Any = None
        self.held = 0
        self.convolves = False
        self.note: dict[str, Any] = {}
        self.micro_steps = 0
        self.counts = os.environ.get("PACELINE_CATCH_STEP", "0")
        self.tally: Tally | None = Tally() if self.counts in ("1", "gpu") and not real else None
        self.casts: MetaAutocast | None = None
        self.steps = 0  # completed steps
        self.stop_weightless: Callable[[], None] = lambda: None
        self.resident: dict[str, int | None] = {}
        self.beside: dict[str, Any] = {}  # entries of the note besides the captured model


def begin(path: str) -> None:
    """Capture the first step once torch is imported, and write the captured data to a new file at this path."""
    real = os.environ.get("PACELINE_CATCH_REAL", "0") == "1"
    actions: dict[str, Any] = {"torch": lambda torch: _patch(torch, _Seen(path, real))}
    import_hook.install(
        {**actions, "paceline.data.loader.iterator": batches.patch_ours, "transformers.training_args": _allow_bf16}
    )


def _allow_bf16(module: Any) -> None:
    """Let Hugging Face's Trainer accept bf16, which it refuses without a GPU."""
    module.is_torch_bf16_gpu_available = lambda: True


def _accelerated() -> str | None:
    """Return the precision that was requested from Accelerate; without a GPU, Accelerate itself ignores fp16."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    asked = getattr(state, "_shared_state", {}).get("_mixed_precision")
    return {"bf16": "bfloat16", "fp16": "float16"}.get(str(asked))


def _patch(torch: Any, seen: _Seen) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    torch.save = lambda *args, **kwargs: None
    _patch_modules(torch, seen)
    _patch_optimizers(torch, seen)
    _patch_autocast(torch, seen)
    _patch_compile(torch, seen)
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: _at_step(seen, args, kwargs))
    if seen.tally is not None and seen.counts == "1":
        batches.patch_torchs(torch)
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: _after_step(seen))
    if not seen.real:
        if seen.counts == "gpu":
            seen.casts = MetaAutocast(torch, lambda: seen.autocast[-1] if seen.autocast else None)
        seen.stop_weightless = meta_device.begin(torch, counted=seen.tally is not None, autocast=seen.casts)


def _patch_modules(torch: Any, seen: _Seen) -> None:
    original = torch.nn.Module.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if seen.depth == 0 and self.training and torch.is_grad_enabled() and os.getpid() == seen.owner:
            _at_forward(torch, seen, self, (*args, *kwargs.values()))
        elif seen.real and seen.depth and seen.note and not seen.convolves:
            _write(torch, seen, None)
            _leave()
        seen.depth += 1
        kept = _counted(seen, self)
        try:
            made = original(self, *args, **kwargs)
            seen.note.update({"kept": kept.described()} if kept else {})
            _note_products(torch, seen, self, made)
            return made
        finally:
            seen.depth -= 1
            if kept:
                kept.end()

    torch.nn.Module.__call__ = call


def _patch_optimizers(torch: Any, seen: _Seen) -> None:
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not seen.looking:
            seen.optimizers.add(self)

    torch.optim.Optimizer.__init__ = init


def _patch_autocast(torch: Any, seen: _Seen) -> None:
    """Record the requested autocast format: without a GPU, torch disables autocast for CUDA."""
    autocast = torch.amp.autocast_mode.autocast
    make, enter, leave = autocast.__init__, autocast.__enter__, autocast.__exit__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        asked = inspect.signature(make).bind(self, *args, **kwargs).arguments
        dtype = asked.get("dtype") or torch.get_autocast_dtype(asked["device_type"])
        self._asked = _name(dtype) if asked.get("enabled", True) else None
        make(self, *args, **kwargs)

    def entered(self: Any) -> Any:
        seen.autocast.append(self._asked)
        if seen.depth and seen.module is not None and not seen.note.get("autocast"):
            seen.note["autocast"] = self._asked  # autocast inside the forward pass, as in Accelerate and some models
        return enter(self)

    def left(self: Any, *args: Any) -> Any:
        seen.autocast.pop()
        if seen.casts is not None and not seen.autocast:
            seen.casts.forget_weights()
        return leave(self, *args)

    autocast.__init__, autocast.__enter__, autocast.__exit__ = init, entered, left


def _patch_compile(torch: Any, seen: _Seen) -> None:
    """Record that the program compiles its model, but skip the compilation, which would take longer than it saves."""

    def as_it_is(model: Any = None, **kwargs: Any) -> Any:
        seen.compiled = True
        return model if model is not None else lambda function: function

    torch.compile = torch.nn.Module.compile = as_it_is


def _at_forward(torch: Any, seen: _Seen, module: Any, inputs: tuple[Any, ...]) -> None:
    held = _held(seen, module)
    if held > seen.held and not seen.steps:
        seen.resident = batches.resident_bytes()
        seen.module, seen.held, seen.micro_steps = module, held, 0
        with torch._C.DisableTorchFunction():
            seen.note = {"model": _model(module, _trained(seen)), "batch": _batch(torch, inputs)}
    if held and module is seen.module and not seen.steps:
        seen.micro_steps += 1
        outside = next((each for each in reversed(seen.autocast) if each), None)
        seen.note["autocast"] = outside or seen.note.get("autocast")
        if seen.micro_steps == 1 or seen.micro_steps > _MOST_MICRO_STEPS:
            _write(torch, seen, None)
        seen.convolves = _convolves(torch, module)  # one forward pass suffices for a model with convolutions
        if seen.micro_steps > _MOST_MICRO_STEPS:
            _leave()
        if seen.micro_steps == 1 and seen.counts == "gpu" and seen.tally is not None:
            seen.tally.leave()  # what a smaller module before ran is forgotten
            seen.tally = Tally()
            seen.tally.enter()


def _convolves(torch: Any, module: Any) -> bool:
    return any(isinstance(each, torch.nn.modules.conv._ConvNd) for each in module.modules())


def _counted(seen: _Seen, module: Any) -> Kept | None:
    """Return a counter of the tensors saved in the first forward of a model with convolutions; None otherwise."""
    if seen.depth != 1 or module is not seen.module or not seen.convolves or seen.note.get("passed"):
        return None
    kept = Kept(module)
    kept.begin()
    return kept


def _note_products(torch: Any, seen: _Seen, module: Any, made: Any) -> None:
    """Record the outputs of layers in the first forward. With real weights, exit when this forward ends."""
    if not seen.note or seen.note.get("passed"):
        return
    seen.note.setdefault("products", []).extend(module_tree.products(module, made))
    if seen.depth == 1 and module is seen.module:
        seen.note["passed"] = True
        seen.note["made"] = _shapes(torch, made)
        if seen.real:
            _write(torch, seen, None)
            _leave()


def _at_step(seen: _Seen, args: Any, kwargs: Any) -> None:
    if os.getpid() == seen.owner and seen.module is not None and not seen.looking:
        computes = any(each is not None for each in (*args[1:], kwargs.get("closure")))  # a closure: a pass follows
        if seen.tally is not None and seen.counts == "gpu":
            seen.tally.leave()
            seen.beside = {"step": seen.tally.described()} if not seen.tally.failed else {}
        if not seen.steps:
            _write(sys.modules["torch"], seen, None if computes else seen.micro_steps)
        if seen.tally is not None and seen.counts == "1":
            seen.tally.part = "optimizer"
        else:
            _leave()


def _after_step(seen: _Seen) -> None:
    """After the first optimizer step, start to count operators; after the second, write the counts and exit."""
    if os.getpid() != seen.owner or seen.module is None or seen.looking or seen.tally is None:
        return
    seen.tally.part = "passes"
    seen.steps += 1
    if seen.steps == 1:
        seen.tally.enter()
        return
    seen.tally.leave()
    seen.stop_weightless()
    seen.beside = {
        "step": {**seen.tally.described(), "resident": seen.resident, "batches": batches.timed(sys.modules["torch"])}
    }
    _write(sys.modules["torch"], seen, seen.note.get("micro_steps", seen.micro_steps))
    _leave()


def _held(seen: _Seen, module: Any) -> int:
    """Return the number of a module's weight elements that are trained."""
    trained = _trained(seen)
    return sum(weight.numel() for weight in module.parameters() if id(weight) in trained)


def _trained(seen: _Seen) -> set[int]:
    return {id(weight) for optimizer in seen.optimizers for weight in _weights(optimizer)}


def _weights(optimizer: Any) -> list[Any]:
    """Return the parameters that an optimizer trains; frozen parameters in its groups are left out."""
    return [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]


def _model(module: Any, trained: set[int]) -> dict[str, Any]:
    kinds, of_trained = _kinds(module.parameters()), _kinds(w for w in module.parameters() if id(w) in trained)
    of_frozen = kinds - of_trained
    return {
        "class": type(module).__name__,
        "weights": kinds.total(),
        "dtype": _name(kinds.most_common(1)[0][0]),
        "weight_bytes": _bytes_each(kinds),
        "trained_bytes": _bytes_each(of_trained),
        "frozen_bytes": _bytes_each(of_frozen),
        "anatomy": module_tree.described(module, trained),
    }


def _kinds(weights: Iterable[Any]) -> Counter[Any]:
    """Return the number of weight elements for each data type."""
    kinds: Counter[Any] = Counter()
    for weight in weights:
        kinds[weight.dtype] += weight.numel()
    return kinds


def _bytes_each(kinds: Counter[Any]) -> float | None:
    return sum(count * kind.itemsize for kind, count in kinds.items()) / kinds.total() if kinds else None


def _batch(torch: Any, inputs: tuple[Any, ...]) -> dict[str, Any] | None:
    """Describe the first tensor in a module's inputs, also inside a dictionary or a list; None without a tensor."""
    for each in inputs:
        if isinstance(each, torch.Tensor):
            whole = not each.is_floating_point()
            return {"shape": list(each.shape), "dtype": _name(each.dtype), "whole_numbers": whole}
        within = each.values() if hasattr(each, "values") and hasattr(each, "keys") else each
        if isinstance(each, list | tuple) or within is not each:
            found = _batch(torch, tuple(within))
            if found is not None:
                return found
    return None


def _shapes(torch: Any, made: Any) -> list[list[int]]:
    """Return the shapes of all tensors in a module's output."""
    if isinstance(made, torch.Tensor):
        return [list(made.shape)]
    within = made.values() if hasattr(made, "values") and hasattr(made, "keys") else made
    if not isinstance(within, list | tuple) and within is made:
        return []
    return [shape for each in within for shape in _shapes(torch, each)]


def _write(torch: Any, seen: _Seen, micro_steps: int | None) -> None:
    own = {id(weight) for weight in seen.module.parameters()}
    optimizers = list(seen.optimizers)
    with torch._C.DisableTorchFunction():
        seen.looking = True
        described = [_optimizer(torch, each) for each in optimizers if any(id(w) in own for w in _weights(each))]
        seen.looking = False
    others = sum(w.numel() for each in optimizers for w in _weights(each) if id(w) not in own)
    note = {
        "schema": SCHEMA,
        **seen.note,
        "autocast": seen.note.get("autocast") or _accelerated(),
        "trained": seen.held,
        "trained_elsewhere": others,
        "optimizers": described,
        "micro_steps": micro_steps,
        "compiled": seen.compiled,
        "tf32": torch.get_float32_matmul_precision() != "highest",
        **seen.beside,
    }
    with open(f"{seen.path}.new", "w", encoding="utf-8") as file:
        json.dump(note, file)
    os.replace(f"{seen.path}.new", seen.path)


def _optimizer(torch: Any, optimizer: Any) -> dict[str, Any]:
    weights = _weights(optimizer)
    described = {"class": type(optimizer).__name__, "weights": sum(weight.numel() for weight in weights)}
    described["fused"] = bool(optimizer.param_groups[0].get("fused"))
    try:
        return {**described, **_small_step(torch, optimizer, weights[0].dtype), "reason": None}
    except Exception as error:
        return {**described, "state_bytes": None, "reason": f"{type(error).__name__}: {error}"}


def _small_step(torch: Any, optimizer: Any, dtype: Any) -> dict[str, Any]:
    """Record the optimizer step of a small matrix.

    Returns:
        ``state_bytes``: the bytes of its state per weight. ``step``: the operators of its second step, and the number
        of ``weights``.
    """
    weight = torch.nn.Parameter(torch.zeros(_TWIN, _TWIN, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    taken = inspect.signature(type(optimizer).__init__).parameters
    group = {name: value for name, value in optimizer.param_groups[0].items() if name in taken and name != "params"}
    twin = type(optimizer)([weight], **group)
    twin.step()
    tally = Tally()
    tally.enter()
    twin.step()
    tally.leave()
    kept = [each for each in twin.state[weight].values() if isinstance(each, torch.Tensor) and each.dim()]
    state_bytes = float(sum(each.numel() * each.element_size() for each in kept)) / _TWIN**2
    return {"state_bytes": state_bytes, "step": {"weights": _TWIN**2, "operators": tally.described()["operators"]}}


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _leave() -> None:
    os._exit(0)
