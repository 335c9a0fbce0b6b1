"""Forward passes with gradients that may belong to an evaluation, stored until a later event decides.

A validation pass without ``no_grad`` looks like training at first: only the missing backward pass shows the difference.
There are two kinds of such forward passes:

- *by mode*: the module is in eval mode and was trained in training mode before. Only an update of parameters shows that
  this is training; the backward passes of a validation with ``autograd.grad`` do not.
- otherwise: forwards ran on batches of one loader. A backward pass during this pass over the loader shows that these
  forwards are training; the end of the pass without a backward shows that they were an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.inprocess.recorder.steps.parts import Part
from paceline.inprocess.recorder.steps.pending import LoaderUse

_A_PASS = 2  # batches of one loader in a row without a backward, after which a batch of another loader ends the pass


class PossibleEvaluation:
    """The times and counts since the first forward pass that may belong to an evaluation."""

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
        self.before = before  # the step's counts before the first forward pass
        self.stage = stage  # slot of idle time before that pass
        self.by_mode = by_mode
        self.over = False  # the pass over the loader has ended
        self.uses: dict[int, LoaderUse] = {}  # use of loaders since the last batch was requested
        self.batches = 0  # consecutive batches from one loader without a backward pass
        self._earlier = Part()
        self._earlier_uses: dict[int, LoaderUse] = {}
        self._loader: int | None = None
        self._modules: set[int] = set()

    def add_forward(self, module: int, loader: int | None) -> None:
        """Record the start of a forward pass on a batch of this loader (None: not on a new batch)."""
        self._modules.add(module)
        if loader is not None:
            self.batches = self.batches + 1 if loader == self._loader else 1
            self._loader = loader

    def is_ended_by(self, module: int, training: bool, loader: int | None) -> bool:
        """Return whether a new forward pass shows that the earlier passes were an evaluation."""
        if self.by_mode:
            return training and module in self._modules
        others = loader is not None and loader != self._loader and self.batches >= _A_PASS
        return self.over or others

    @property
    def is_likely(self) -> bool:
        """Whether the stored forward passes are an evaluation according to the events so far."""
        return self.by_mode or self.over or self.batches >= _A_PASS

    def close_batch(self, part: Part) -> None:
        """Add the times and counts of the current batch to those of earlier batches."""
        self._earlier.extend(part)
        merge(self._earlier_uses, self.uses, evaluation=False)
        self.uses = {}

    def as_training(self, part: Part, loaders: dict[int, LoaderUse]) -> Part:
        """Return the times and counts of all parts, including the open one, as training."""
        self.close_batch(part)
        self.before.extend(self._earlier)
        merge(loaders, self._earlier_uses, evaluation=False)
        return self.before

    def as_evaluation(self, part: Part, loaders: dict[int, LoaderUse]) -> Part:
        """Return all counts as an evaluation. If the pass is over, the open part does not belong to the evaluation."""
        if not self.over:
            self.close_batch(part)
            part = Part()
        self.before.add_evaluation(self._earlier)
        merge(loaders, self._earlier_uses, evaluation=True)
        merge(loaders, self.uses, evaluation=True)
        self.before.add_idle(part, self.stage)
        return self.before


def merge(into: dict[int, LoaderUse], uses: Mapping[int, LoaderUse], *, evaluation: bool) -> None:
    """Add the uses of loaders to those in `into`, as training or as evaluation."""
    for number, use in uses.items():
        into.setdefault(number, LoaderUse()).add(use, evaluation=evaluation)
