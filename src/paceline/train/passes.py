"""Forward and backward passes of the micro-batches of a step, on any layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.arrange import Arranged
from paceline.train.batch_samples import split_batch
from paceline.train.gradients import Weights, inverse, multiply
from paceline.train.parallel import hugging_face

Loss = Callable[[Any, Any], Any]


def called(module: Any, inputs: Any) -> Any:
    """Return the output of a model; a Hugging Face model takes a mapping as keywords, other models as one argument."""
    own = getattr(module, "module", module)  # DDP holds the model
    if isinstance(inputs, Mapping) and hugging_face.is_hugging_face(own):
        return module(**inputs)
    return module(inputs)


class Passes:
    """Runs the micro-steps of each step."""

    def __init__(
        self,
        arranged: Arranged,
        weights: Weights,
        planned: int,
        context: Callable[[], AbstractContextManager[Any]],
        scale: Any = None,
        note_loss: Callable[[Any], None] = lambda loss: None,
    ) -> None:
        """Store the arguments and set the counters to zero.

        Args:
            arranged: The model on this rank.
            weights: The weights of the losses.
            planned: The number of micro-steps of a step.
            context: Returns the context of a forward pass, such as autocast.
            scale: The loss scale; None without fp16.
            note_loss: Called with each loss before its backward pass.
        """
        self.arranged = arranged
        self.weights = weights
        self.planned = planned
        self.begun = 0  # number of micro-steps of this step so far
        self.synced = False  # whether the gradients of this step are reduced over ranks
        self._factor: Any = None  # by which the gradients were multiplied after the last micro-step
        self._context = context
        self._scale = scale
        self._note_loss = note_loss

    @contextmanager
    def micro_step(self, last: bool | None) -> Iterator[None]:
        """Run forward and backward of a micro-batch inside the context; the last one of a step reduces gradients."""
        if self.arranged.stages is not None:
            raise UsageError(
                "with pp the pipeline runs forward and backward: use train_batch() in place of micro_step()"
            )
        self.begun += 1
        self._begin()
        self.synced = self.begun >= self.planned if last is None else last
        self.arranged.set_sync(self.synced)
        with self._context():
            yield
        if self.synced:
            self._finish()

    def _begin(self) -> None:
        """Start another micro-step. If gradients were divided by the sum of the weights, undo this."""
        if self._factor is not None:
            self._multiply(inverse(self._factor))
            self._factor = None
        self.weights.begin()

    def _finish(self) -> None:
        """Divide the reduced gradients by the sum of the weights, so that they are those of one process."""
        self.arranged.check_reduced()
        self._factor = self.weights.factor()
        self._multiply(self._factor)

    def _multiply(self, factor: Any) -> None:
        parameters = self.arranged.held.parameters()
        multiply([each.grad for each in parameters if each.grad is not None], factor)

    def backward(self, loss: Any, weight: Any) -> None:
        """Run backward of one loss of a micro-batch, multiplied by its weight."""
        self.weights.take(weight)
        self._note_loss(loss)
        loss = self.weights.multiplied(loss, weight)
        self.weights.add(loss)
        (loss * self._scale.value if self._scale else loss).backward()

    def train(self, inputs: Any, target: Any, loss: Loss, weight: Callable[[Any], Any] | None) -> None:
        """Run forward and backward of this rank's batch.

        Args:
            inputs: Inputs of the model.
            target: The target, passed to the loss after the output.
            loss: Returns a scalar for an output and a target.
            weight: Returns how much a target counts; None if all micro-batches count alike.
        """
        if self.arranged.stages is not None:
            self._run_stages(self.arranged.stages, (inputs, target), loss, weight)
            return
        for part, wanted in split_batch((inputs, target), self.planned):
            with self.micro_step(None):
                output = called(self.arranged.module, part)
                # With [layers] the output is on the last device.
                at = getattr(output, "device", None)
                loss_of_part = loss(output, wanted.to(at) if at and hasattr(wanted, "to") else wanted)
                self.backward(loss_of_part, weight(wanted) if weight else None)

    def _run_stages(self, stages: Any, batch: tuple[Any, Any], loss: Loss, weight: Callable[[Any], Any] | None) -> None:
        """Run a batch through the pipeline."""
        inputs, target = batch
        scale = self._scale.value if self._scale else 1.0
        for _, wanted in split_batch((inputs, target), self.planned):
            self._begin()
            self.weights.take(weight(wanted) if weight else None)
        with self._context():
            losses = stages.run(inputs, target, partial(self._scaled, loss, weight, scale))
        for each in losses:
            self.weights.add(each / scale)
        self.begun, self.synced = self.planned, True
        self._finish()

    def _scaled(self, loss: Any, weight: Any, scale: float, output: Any, wanted: Any) -> Any:
        """Return the weighted and scaled loss of a micro-batch of a pipeline, for backward."""
        found, own = loss(output, wanted), weight(wanted) if weight else None
        self._note_loss(found)
        self.weights.guard_from(own, output)
        return self.weights.multiplied(found, own) * scale

    def clear(self) -> None:
        """Reset the counters for the next step."""
        self.weights.clear()
        self.begun, self.synced, self._factor = 0, False, None
