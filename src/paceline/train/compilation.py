"""torch.compile for the repeated blocks of a model, or for the whole model where it has none.

The forward function of each block is compiled by itself, after it was split and before FSDP2 gathers its parameters.
Hooks stay outside of what is compiled, and names of parameters stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.layout import Layout

_MODES = ("default", "reduce-overhead", "max-autotune")


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How forward and backward are computed; table ``[compute]`` of a recipe."""

    compile: str | None = None  # mode of torch.compile; None: not compiled

    def __post_init__(self) -> None:
        if self.compile is not None and self.compile not in _MODES:
            raise UsageError(f"compute.compile = {self.compile!r} is not allowed; it takes {', '.join(_MODES)}")

    def check(self, layout: Layout, *, weighs: bool, spreads: bool) -> None:
        """See that blocks can be compiled with the other settings.

        Args:
            layout: Of the run.
            weighs: Whether what blocks keep is measured in their first forward.
            spreads: Whether layers are on several devices of one process.

        Raises:
            UsageError: They cannot.
        """
        if self.compile is None:
            return
        used, graphs = set(layout.in_use), self.compile != "default"
        for refused, what in (
            (not used <= {"dp", "shard"}, f"layout {layout}; use dp and shard only, or leave out compute.compile"),
            (graphs and "shard" in used, f"layout {layout}; use compute.compile = 'default'"),
            (weighs, "memory.activation_budget; use memory.checkpoint_every or memory.selective"),
            (spreads, "[layers]; use the layout pp"),
        ):
            if refused:
                raise UsageError(f"compute.compile = {self.compile!r} cannot be combined with {what}")

    def uncompiled(self) -> AbstractContextManager[Any]:
        """Return a context in which blocks run uncompiled: what torch cannot compile there it would never compile."""
        import torch

        return nullcontext() if self.compile is None else torch.compiler.set_stance("force_eager")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say what to do if torch cannot compile; blocks are compiled in their first forward and backward pass.

        Raises:
            EnvironmentFault: torch cannot compile, for example without a C++ compiler, or without Triton on a GPU.
        """
        try:
            yield
        except Exception as error:
            if self.compile is None or not _is_from_compiler(error):
                raise
            cause = getattr(error, "inner_exception", error)  # of a backend, such as inductor
            first_line = str(cause).strip().partition("\n")[0]
            raise EnvironmentFault(
                f"compute.compile = {self.compile!r}: torch cannot compile here ("
                f"{type(cause).__name__}: {first_line}). "
                "Leave out compute.compile (--compile), or install what torch.compile needs: a C++ compiler, and "
                "Triton for a GPU"
            ) from error

    def apply(self, model: Any, blocks: Sequence[Any]) -> None:
        """Compile the blocks of a model, or the model; forwards are changed in place.

        Args:
            model: What this rank calls.
            blocks: Its repeated blocks; empty without.
        """
        import torch
        import torch._dynamo.config as dynamo

        if self.compile is None:
            return
        for part in blocks or [model]:
            own = type(part).forward.__module__.startswith("torch.nn.")  # torch.compile skips forwards in torch.nn
            with dynamo.patch(wrap_top_frame=True) if own else nullcontext():
                part.forward = torch.compile(part.forward, mode=None if self.compile == "default" else self.compile)


def _is_from_compiler(error: Exception) -> bool:
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException)
