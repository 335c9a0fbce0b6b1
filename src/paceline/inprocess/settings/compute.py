"""[compute]: torch.compile, channels-last, the number of compute threads, and the kernels of a CUDA device."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation, on_cuda, outermost_forward

_COMPILE = "compute.compile"
_MOST_COMPILED = 8  # steps with a compilation; torch itself stops compiling one function after as many
_CUDNN = "compute.cudnn_benchmark"
_SDPA = "compute.sdpa_backend"
_BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
_in_force = ExitStack()  # contexts that stay entered


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Apply the [compute] settings of a recipe."""
    if "num_threads" in settings:
        _set_threads(torch, settings["num_threads"])
    if "compile" in settings:
        _patch_compile(torch, settings["compile"])
    if settings.get("channels_last"):
        outermost_forward.around(torch, _ChannelsLast(torch))
    if settings.get("cudnn_benchmark"):
        _set_cudnn_benchmark(torch)
    if "sdpa_backend" in settings:
        _prefer_attention(torch, settings["sdpa_backend"])


def _set_threads(torch: Any, count: int) -> None:
    """Set torch's number of compute threads; later calls by the program are ignored, except in loader workers."""
    original, owner = torch.set_num_threads, os.getpid()
    original(count)

    @functools.wraps(original)
    def set_num_threads(number: int) -> None:
        if os.getpid() != owner:
            original(number)

    hooks.install(torch, "set_num_threads", set_num_threads)
    confirmation.took("compute.num_threads", f"{count} threads")


class _Once:
    """Calls a function with each model before its first forward in training."""

    def __init__(self, act: Any) -> None:
        self._act = act
        self._done: set[int] = set()

    def __call__(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in self._done and module.training:
            self._done.add(id(module))
            self._act(module)
        return forward(*args, **kwargs)


def _patch_compile(torch: Any, mode: str) -> None:
    """Compile models, and stop compiling if torch keeps recompiling them."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    compiled = _Compiled(torch, mode)
    outermost_forward.around(torch, _Once(compiled.begin))
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: compiled.step())


class _Compiled:
    """Counts the steps in which torch compiled code, because changing input shapes can cause endless compilation."""

    def __init__(self, torch: Any, mode: str) -> None:
        self._torch = torch
        self._mode = mode
        self._begun = False
        self._pieces = 0
        self._steps = 0

    def begin(self, module: Any) -> None:
        """Compile a model in place."""
        if isinstance(module, self._torch.nn.parallel.DistributedDataParallel):
            module = module.module
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            confirmation.refused(_COMPILE, f"{type(module).__name__} is already compiled")
            return
        _compile(module, self._mode)
        self._begun = True
        confirmation.took(_COMPILE, f"{type(module).__name__} is compiled ({self._mode})")

    def step(self) -> None:
        """Count the step if torch compiled code in it. After too many such steps, code is no longer recompiled."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        pieces = dynamo.counters["frames"]["total"] if dynamo is not None else 0
        if self._begun and pieces == 0:
            confirmation.gave_up(_COMPILE, "torch found no code in the model that torch can compile")
        if pieces == self._pieces:
            return
        self._pieces = pieces
        self._steps += 1
        if self._steps == _MOST_COMPILED:
            self._torch.compiler.set_stance("eager_on_recompile")
            confirmation.gave_up(
                _COMPILE,
                f"torch compiled for new input shapes in {_MOST_COMPILED} steps, so the input shapes keep changing",
            )


def _compile(module: Any, mode: str) -> None:
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    if mode != "default":  # one CUDA graph per shape would use ever more memory
        inductor.triton.cudagraph_skip_dynamic_graphs = True
    own = type(module).forward.__module__.startswith("torch.nn.")  # torch.compile skips forwards in torch.nn
    with dynamo.patch(wrap_top_frame=True) if own else nullcontext():
        module.compile(mode=None if mode == "default" else mode)


def _set_cudnn_benchmark(torch: Any) -> None:
    """Let cuDNN measure its algorithms for each new shape of a convolution, and use the fastest."""

    def why_not(optimizer: Any, _: Any) -> str | None:
        if not any(p.dim() >= 3 for group in optimizer.param_groups for p in group["params"]):
            return "the model has no convolutions"
        return None if torch.backends.cudnn.benchmark else "the program sets torch.backends.cudnn.benchmark itself"

    if on_cuda.told_at_first_step(torch, _CUDNN, "cuDNN measures which convolution algorithm is fastest", why_not):
        torch.backends.cudnn.benchmark = True


def _prefer_attention(torch: Any, name: str) -> None:
    """Prefer one backend of scaled_dot_product_attention; others handle inputs that this backend does not support."""
    from torch.nn import attention

    first = getattr(attention.SDPBackend, _BACKENDS[name])
    others = [getattr(attention.SDPBackend, other) for key, other in _BACKENDS.items() if key != name]

    def why_not(_: Any, device: Any) -> str | None:
        asked = torch._C._get_sdp_priority_order()
        return None if asked[0] == int(first) else "the program chooses an attention kernel itself"

    if on_cuda.told_at_first_step(
        torch, _SDPA, f"attention uses the kernel {name} for all inputs that this kernel supports", why_not
    ):
        _in_force.enter_context(attention.sdpa_kernel([first, *others], set_priority=True))


class _ChannelsLast:
    """Keeps images and the weights of convolutions in channels-last memory format."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._done: set[int] = set()

    def __call__(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in self._done:
            self._done.add(id(module))
            if any(p.dim() == 4 for p in module.parameters()):
                module.to(memory_format=self._torch.channels_last)
                confirmation.took("compute.channels_last", f"{type(module).__name__} is stored in channels-last format")
        return forward(*(self._last(a) for a in args), **{k: self._last(v) for k, v in kwargs.items()})

    def _last(self, value: Any) -> Any:
        picture = isinstance(value, self._torch.Tensor) and value.dim() == 4
        return value.to(memory_format=self._torch.channels_last) if picture else value
