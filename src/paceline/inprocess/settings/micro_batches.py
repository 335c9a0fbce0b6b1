"""memory.micro_batches: run a batch through the model in parts, so that activations of only one part exist at a time.

The program still sees one batch, one output, one loss and one update. The program's loss is computed on the whole
output, so it averages over the same samples or tokens. In backward each part is recomputed, and its gradients are
added. This costs one more forward. Gradient accumulation in the program does not have this cost, but its loss must be
weighted, which only the source code can do.
"""

from __future__ import annotations

from typing import Any

from paceline.inprocess.settings import confirmation, outermost_forward, recompute

_KEY = "memory.micro_batches"


def patch(torch: Any, parts: int) -> None:
    """Run every outermost forward in training in this number of parts."""
    outermost_forward.around(torch, _Chunked(torch, parts))


class _Chunked:
    """Runs models in parts of a batch, from the second forward on. The first forward shows whether this is possible."""

    def __init__(self, torch: Any, parts: int) -> None:
        self._torch = torch
        self._parts = parts
        self._can: dict[int, bool] = {}

    def __call__(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        batch = self._batch((args, kwargs))
        if not module.training or not self._torch.is_grad_enabled() or self._can.get(id(module)) is False:
            return forward(*args, **kwargs)
        if id(module) not in self._can:
            result = forward(*args, **kwargs)
            self._look(module, batch, result)
            return result
        if batch is None or batch < 2:
            return forward(*args, **kwargs)
        return self._in_parts(module, forward, args, kwargs, batch)

    def _look(self, module: Any, batch: int | None, result: Any) -> None:
        """Determine at the first forward whether a model can run in parts."""
        why = self._reason(module, batch, result)
        self._can[id(module)] = why is None
        if why is None:
            confirmation.took(
                _KEY, f"batches of {batch} samples go through {type(module).__name__} in {self._parts} parts"
            )
        else:
            confirmation.refused(_KEY, why)

    def _reason(self, module: Any, batch: int | None, result: Any) -> str | None:
        """Return the reason why a model cannot run in parts, or None."""
        norms = self._torch.nn.modules.batchnorm._BatchNorm
        if isinstance(module, self._torch.nn.parallel.DistributedDataParallel):
            return "DistributedDataParallel expects one forward pass for each backward pass"
        if any(isinstance(m, norms) and m.training for m in module.modules()):
            return "BatchNorm needs statistics of the whole batch"
        if batch is None:
            return "the model's inputs differ in their first dimension, so the batch dimension is unknown"
        if self._batch(result) != batch:
            return "the model does not return one value per sample; the model probably computes the loss itself"
        return None

    def _batch(self, value: Any) -> int | None:
        """Return the first dimension if it is equal in all tensors of a value, else None."""
        sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in self._tensors(value)}
        return sizes.pop() if len(sizes) == 1 and 0 not in sizes else None

    def _tensors(self, value: Any) -> list[Any]:
        if isinstance(value, self._torch.Tensor):
            return [value]
        if isinstance(value, dict):
            value = list(value.values())
        return [t for one in value for t in self._tensors(one)] if isinstance(value, list | tuple) else []

    def _in_parts(self, module: Any, forward: Any, args: Any, kwargs: Any, batch: int) -> Any:
        size = -(-batch // self._parts)
        found = []
        for begin in range(0, batch, size):
            part, named = self._part((args, kwargs), begin, begin + size)
            found.append(recompute.forgetful(self._torch, module, forward, part, named))
        return self._joined(found)

    def _part(self, value: Any, begin: int, end: int) -> Any:
        if isinstance(value, self._torch.Tensor):
            return value[begin:end]
        if isinstance(value, dict):
            return _like(value, {key: self._part(one, begin, end) for key, one in value.items()})
        if isinstance(value, list | tuple):
            return _sequence(value, [self._part(one, begin, end) for one in value])
        return value

    def _joined(self, found: list[Any]) -> Any:
        first = found[0]
        if isinstance(first, self._torch.Tensor):
            return self._torch.cat(found)
        if isinstance(first, dict):
            return _like(first, {key: self._joined([one[key] for one in found]) for key in first})
        if isinstance(first, list | tuple):
            return _sequence(first, [self._joined([one[i] for one in found]) for i in range(len(first))])
        return first


def _like(value: Any, content: dict[Any, Any]) -> Any:
    """Return `content` as a mapping of the class of `value`: a dict, or a model output class."""
    return content if type(value) is dict else type(value)(**content)


def _sequence(value: Any, content: list[Any]) -> Any:
    return type(value)(*content) if hasattr(value, "_fields") else type(value)(content)
