"""Messages of the comparison: what differs, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.layout import Layout

_BY_AXIS = {
    "tp": "With tp, each rank has only some of the heads or hidden units: write view(batch, length, -1, head), use no "
    "operation over all units and no parameter of all heads between the split matrices (a norm of each head needs the "
    'style "replicated_with_grad_allreduce" in the tp_plan of the model), or use shard instead of tp',
    "cp": "A model that uses positions must get them from paceline.train.positions(length, device); a model that mixes "
    "positions outside scaled_dot_product_attention, or returns a mean over them, needs shard or tp instead of "
    "cp, and the loss must be a mean over all positions",
    "pp": "With pp, the only input of a layer must be the output of the previous layer",
    "samples": "With dp and shard, each rank has only some of the samples: the loss must be a mean over samples, or "
    "over what weight= counts, and no operation except torch's BatchNorm may use the whole batch",
}
OFF = "To train without this check, set first_step = false in the section [checks] of the recipe"


def difference_message(layout: Layout, name: str, what: str, share: float) -> str:
    """Return the message for a split model that computes different values than the whole model.

    Args:
        layout: The layout of the run.
        name: The class name of the model.
        what: What differs, such as the output of a module.
        share: The norm of the difference as a share of the expected norm.
    """
    axes: list[str] = [axis for axis in ("tp", "cp", "pp") if axis in layout.in_use] or ["samples"]
    ways_out = ". ".join(_BY_AXIS[axis] for axis in axes)
    return (
        f"{layout}: {name} computes different values on {layout.ranks} ranks than on one: on the first batch, {what} "
        f"differs by {share:.2%} (the first difference in the order of computation). {ways_out}. {OFF}"
    )


def failure_message(layout: Layout, name: str, error: BaseException) -> str:
    """Return the message for a model that fails only if its matrices are split.

    Args:
        layout: A layout with tp.
        name: The class name of the model.
        error: The error of the split model.
    """
    what = (str(error).splitlines() or [""])[0][:200]
    return f"{layout}: {name} fails when it is split ({type(error).__name__}: {what}). {_BY_AXIS['tp']}"


def loss_message(layout: Layout, call: int, whole: float, mean: float) -> str:
    """Return the message for a loss that is not a mean over samples.

    Args:
        layout: The layout of the run.
        call: The number of the call of the loss.
        whole: The loss of some samples.
        mean: The mean of the losses of two halves of these samples, weighted by `weight`.
    """
    return (
        f"{layout}: the loss is not a mean over samples, so training differs from that of one process: in call {call} "
        f"of the loss on this rank, it is {whole:.6g}, and the mean of the losses of two halves is {mean:.6g}. "
        f"{_BY_AXIS['samples']}. {OFF}"
    )


def unchecked_loss_message(layout: Layout, why: str) -> str:
    """Return the message for a loss that cannot be compared with the mean of the losses of two halves of the samples.

    Args:
        layout: The layout of the run.
        why: The reason.
    """
    return (
        f"layout {layout}: the loss is compared with that of one process in the first step only, because the output of "
        f"the model cannot be halved ({why}). The loss must be a mean over samples in all steps"
    )


def state_message(layout: Layout, name: str, value_name: str) -> str:
    """Return the message for a value, such as a running mean, that each rank computes from its own samples.

    Args:
        layout: The layout of the run.
        name: The class name of the model.
        value_name: The name of the value. The name of an attribute of the model begins with a dot.
    """
    for number, function in enumerate(("the loss", "the weight")):
        value_name = value_name.replace(f"argument {number}", function)
    what = f"{name}{value_name}" if value_name.startswith((".", "[")) else value_name
    return (
        f"{layout}: {what} gets another value on {layout.ranks} ranks than on one, and later steps depend on it, so "
        "training differs from that of one process. Each rank has only some of the samples or positions: compute the "
        f"value in the training loop, from what all ranks have. {OFF}"
    )


def statistics_message(layout: Layout, function: str, modules: Sequence[str]) -> str:
    """Return the message for statistics over the samples of a rank in a model that the engine does not know.

    Args:
        layout: The layout of the run.
        function: The function of `torch.nn.functional` that computes them.
        modules: The class names of the layer and of the model that calls it; empty if the training loop calls it.
    """
    layer, name = (modules[0], modules[-1]) if modules else (f"torch.nn.functional.{function}", "")
    what = f"{layer} in {name}" if name not in ("", layer) else layer
    copy = (
        ""
        if {"shard", "tp", "pp"} & set(layout.in_use)
        else "copy it after setup() from the model that setup() returned, "
    )
    return (
        f"{layout}: {what} is not part of a model that setup() was given, and computes statistics over the samples of "
        "this rank only, so training differs from that of one process. Call eval() on that model, "
        f"{copy}or pass it to setup() of an engine of its own. {OFF}"
    )


def draws_message(layout: Layout, name: str, what: str) -> str:
    """Return the message for ranks of one tp group that draw different random numbers."""
    return (
        f"{layout}: ranks of one tp group draw different random numbers ({what}) in {name} for the same activations; "
        "use only torch's default generator, or use shard instead of tp"
    )


def exchange_message(layout: Layout, name: str, what: str) -> str:
    """Return the message for a model or a loss that exchanges tensors between ranks itself."""
    return (
        f"{layout}: {name} or its loss exchanges tensors between ranks itself ({what}), and the engine also "
        f"reduces gradients, so training differs from that of one process. Remove the exchange. {OFF}"
    )


def no_comparison_message(layout: Layout, name: str, why: str) -> str:
    """Return the notice that a model is not compared, with the reason."""
    return f"{layout}: {name} is not compared with one process: {why}"


def own_batches_message(layout: Layout, step: int) -> str:
    """Return the message for batches that the program takes in its loop, and that differ between ranks."""
    return (
        f"{layout}, step {step} after setup(): no batch comes from engine.loader(), and the ranks compute different "
        f"losses, so that {layout.samples} ranks train on other batches than one process. Pass a DataLoader, or a "
        "generator that yields whole batches, to engine.loader(). If each rank is to train on its own batches, set "
        "samples = false in the section [checks] of the recipe"
    )


def same_batches_message(layout: Layout) -> str:
    """Return the notice for batches that are the same on all ranks."""
    return (
        f"layout {layout}: all ranks train on the same batches, because no batch comes from engine.loader(); "
        "this takes as long as one process. Pass a DataLoader, or a generator that yields whole batches, to "
        "engine.loader(), so that each rank computes a part of each batch"
    )


def split_loss_message(layout: Layout, step: int, least: float, most: float) -> str:
    """Return the message about losses that differ between ranks with the same samples.

    Args:
        layout: The layout of the run, with tp.
        step: The number of the step.
        least: The smallest of the losses.
        most: The largest of the losses.
    """
    return (
        f"{layout}, step {step} after setup(): ranks with the same samples have losses from {least:.6g} to {most:.6g}. "
        "With tp, a rank has only a part of the activations between two split layers: compute the loss from the output "
        "of the model, or from outputs of layers that are not split, and seed what the loss draws; or use shard or dp "
        f"in place of tp. {OFF}"
    )
