"""Count the objectives: which losses each optimizer minimizes, and how often each module exchanges gradients.

An *objective* is identified by the modules that ran forward for it, the optimizer that steps after its backward pass,
and the source lines on the stack of the backward pass, if a stack was taken. A GAN has two objectives; gradient
accumulation has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.inprocess.recorder import probe_state as g

_ENOUGH = 4096  # backward passes; later ones hardly change the counts
_MOST_HELD = 256  # stored backward passes between two optimizer steps
_MOST_TOLD = 8  # objectives and modules in the summary

Line = tuple[str, int]  # file and line number


class _Objective(NamedTuple):
    modules: frozenset[int]
    optimizer: int | None
    lines: tuple[Line, ...] | None  # None: no stack was taken


class _Backward(NamedTuple):
    modules: frozenset[int]
    lines: tuple[Line, ...] | None
    exchanging: frozenset[int]


class Objectives:
    """Counts backward passes by objective, and gradient exchanges by module."""

    def __init__(self, module_name: Callable[[int], str | None], own_line: Callable[[str], bool]) -> None:
        self._module_name = module_name
        self._own_line = own_line
        self._names: dict[int, str | None] = {}
        self._modules: set[int] = set()  # modules that ran forward with gradients since the last backward pass
        self._exchanging: set[int] = set()  # the modules of these that will exchange gradients
        self._held: list[_Backward] = []  # backward passes since the last optimizer step
        self._free = False  # a forward pass without gradients ran since the last optimizer step
        self._counts: Counter[_Objective] = Counter()
        self._exchanges: Counter[int] = Counter()
        self._exchanged_in: Counter[int] = Counter()  # updates in which a module exchanged gradients at least once
        self._forwards = 0
        self._backwards = 0
        self._updates = 0
        self._updates_with_free = 0

    def feed(self, event: g.Moment) -> None:
        """Count one event of the training thread."""
        code = event[1]
        if code == g.FORWARD:
            self._forward(event[2])
        elif code == g.BACKWARD:
            self._backward(event[3])
        elif code == g.OPTIMIZER + 1:
            self._update(event[2])

    @property
    def done(self) -> bool:
        """Whether enough backward passes were counted."""
        return self._backwards >= _ENOUGH

    def _forward(self, detail: Any) -> None:
        graded, _, module, _, _, synced, _ = detail
        if not graded:
            self._free = True
            return
        if module not in self._names:
            self._names[module] = self._module_name(module)
        self._forwards += 1
        self._modules.add(module)
        if synced:
            self._exchanging.add(module)

    def _backward(self, frames: Any) -> None:
        self._backwards += 1
        lines = self._lines(frames) if frames else None
        self._held.append(_Backward(frozenset(self._modules), lines, frozenset(self._exchanging)))
        self._modules.clear()
        self._exchanging.clear()
        if len(self._held) >= _MOST_HELD:
            self._update(None)

    def _lines(self, frames: Any) -> tuple[Line, ...]:
        return tuple((code.co_filename, line) for code, line in frames if self._own_line(code.co_filename))

    def _update(self, optimizer: int | None) -> None:
        if not self._held:
            return  # a second optimizer steps with the gradients of the same backward passes
        exchanged: Counter[int] = Counter()
        for one in self._held:
            self._counts[_Objective(one.modules, optimizer, one.lines)] += 1
            exchanged.update(one.exchanging)
        self._exchanges.update(exchanged)
        self._exchanged_in.update(exchanged.keys())
        self._updates += 1
        self._updates_with_free += self._free
        self._held.clear()
        self._free = False

    def as_json(self) -> dict[str, Any]:
        """Return the numbers of forwards, backwards and updates, and the counts by objective and module."""
        optimizers = {key: number for number, key in enumerate(dict.fromkeys(o.optimizer for o in self._counts))}
        return {
            "forwards": self._forwards,
            "backwards": self._backwards,
            "updates": self._updates,
            "updates_with_gradient_free_forwards": self._updates_with_free,
            "objectives": [
                {
                    "modules": sorted(self._names.get(module) or "a module" for module in one.modules),
                    "module_ids": sorted(one.modules),
                    "optimizer": None if one.optimizer is None else optimizers[one.optimizer],
                    "lines": None if one.lines is None else [f"{file}:{line}" for file, line in one.lines[:4]],
                    "backwards": count,
                }
                for one, count in self._counts.most_common(_MOST_TOLD)
            ],
            "exchanges": [
                {
                    "module": self._names.get(module) or "a module",
                    "updates": self._exchanged_in[module],
                    "exchanges": count,
                }
                for module, count in self._exchanges.most_common(_MOST_TOLD)
            ],
        }
