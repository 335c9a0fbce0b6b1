"""ddp.comm_hook: send gradients between ranks in half precision, or as low-rank matrices (PowerSGD)."""

from __future__ import annotations

from typing import Any

from paceline.inprocess.settings import confirmation, outermost_forward

_KEY = "ddp.comm_hook"
POWERSGD_FROM = 10  # steps: until then, buckets change and gradients are far from low rank


def patch(torch: Any, name: str) -> None:
    """Compress the gradients of every model with DDP, unless the program has registered a hook."""
    outermost_forward.around(torch, _Compression(torch, name))


class _Compression:
    """Registers the hook before a model's first forward: by then the program has registered its own hook, if any."""

    def __init__(self, torch: Any, name: str) -> None:
        self._torch = torch
        self._name = name
        self._done: set[int] = set()

    def __call__(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        exchanges = isinstance(module, self._torch.nn.parallel.DistributedDataParallel)
        if exchanges and id(module) not in self._done and self._torch.is_grad_enabled():
            self._done.add(id(module))
            self._register(module)
        return forward(*args, **kwargs)

    def _register(self, module: Any) -> None:
        backend = self._torch.distributed.get_backend(module.process_group)
        if module._comm_hooks:
            confirmation.refused(_KEY, "the program registers a communication hook itself")
            return
        if self._name == "powersgd" and backend != "nccl":
            confirmation.refused(
                _KEY,
                f"PowerSGD needs NCCL, because {backend} confuses the messages of several gradient buckets",
            )
            return
        try:
            module.register_comm_hook(*self._hook(module.process_group))
        except (RuntimeError, TypeError, ValueError) as error:
            confirmation.refused(_KEY, str(error))
        else:
            confirmation.took(
                _KEY,
                f"DDP compresses the gradients of {type(module.module).__name__} with the communication "
                f"hook {self._name}",
            )

    def _hook(self, group: Any) -> tuple[Any, Any]:
        """Return the state and the function of DDP's communication hook, for a process group."""
        from torch.distributed.algorithms import ddp_comm_hooks as hooks

        if self._name == "powersgd":
            state = hooks.powerSGD.PowerSGDState(process_group=group, start_powerSGD_iter=POWERSGD_FROM)
            return state, hooks.powerSGD.powerSGD_hook
        return group, {"fp16": hooks.default.fp16_compress_hook, "bf16": hooks.default.bf16_compress_hook}[self._name]
