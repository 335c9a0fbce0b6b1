"""Forward passes with gradients that may belong to an evaluation, until it is known what they were for.

A validation pass without ``no_grad`` looks like training until no backward pass follows it. Two kinds are kept apart:

- *by mode*: the module is in eval mode and was trained in training mode before. Only an update of parameters shows
  that this is training; the backward passes of a validation by ``autograd.grad`` do not.
- otherwise: batches of one loader were passed forward. A backward pass during the loader's pass shows that this is
  training; the end of the pass without one shows that it was an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.inprocess.recorder.steps.parts import Part
from paceline.inprocess.recorder.steps.pending import LoaderUse

_A_PASS = 2  # batches of one loader in a row without a backward pass, after which another loader's batch ends the pass


class PossibleEvaluation:
    """What was counted since the first of these forward passes."""

    __slots__ = (
        "_earlier",
        "_earlier_uses",
        "_loader",
        "_modules",
        "batches",
        "before",
        "by_mode",
        "over",
        "stage",
        "uses",
    )

    def __init__(self, before: Part, stage: int, *, by_mode: bool) -> None:
        self.before = before  # counted in the step before the first forward pass
        self.stage = stage  # of idle time, before
        self.by_mode = by_mode
        self.over = False  # the loader's pass has ended
        self.uses: dict[int, LoaderUse] = {}  # of loaders since the last batch was asked for
        self.batches = 0  # batches in a row from one loader without a backward pass
        self._earlier = Part()
        self._earlier_uses: dict[int, LoaderUse] = {}
        self._loader: int | None = None
        self._modules: set[int] = set()

    def add_forward(self, module: int, loader: int | None) -> None:
        """A forward pass begins, on a batch of this loader (None: on no new batch)."""
        self._modules.add(module)
        if loader is not None:
            self.batches = self.batches + 1 if loader == self._loader else 1
            self._loader = loader

    def is_ended_by(self, module: int, training: bool, loader: int | None) -> bool:
        """Return whether a new forward pass shows that the passes before it were an evaluation."""
        if self.by_mode:
            return training and module in self._modules
        others = loader is not None and loader != self._loader and self.batches >= _A_PASS
        return self.over or others

    @property
    def is_likely(self) -> bool:
        """Whether this is an evaluation as far as can be told now."""
        return self.by_mode or self.over or self.batches >= _A_PASS

    def close_batch(self, part: Part) -> None:
        """What was counted up to now belongs to earlier batches."""
        self._earlier.extend(part)
        merge(self._earlier_uses, self.uses, evaluation=False)
        self.uses = {}

    def as_training(self, part: Part, loaders: dict[int, LoaderUse]) -> Part:
        """Return all that was counted, with the open part, as training."""
        self.close_batch(part)
        self.before.extend(self._earlier)
        merge(loaders, self._earlier_uses, evaluation=False)
        return self.before

    def as_evaluation(self, part: Part, loaders: dict[int, LoaderUse]) -> Part:
        """Return all that was counted as an evaluation; the open part is what came after it if the pass is over."""
        if not self.over:
            self.close_batch(part)
            part = Part()
        self.before.add_evaluation(self._earlier)
        merge(loaders, self._earlier_uses, evaluation=True)
        merge(loaders, self.uses, evaluation=True)
        self.before.add_idle(part, self.stage)
        return self.before


def merge(into: dict[int, LoaderUse], uses: Mapping[int, LoaderUse], *, evaluation: bool) -> None:
    """Add how loaders were used, as training or as evaluation."""
    for number, use in uses.items():
        into.setdefault(number, LoaderUse()).add(use, evaluation=evaluation)
