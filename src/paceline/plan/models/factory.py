"""Creates a model by calling a Python function or class (factory) on the meta device, where tensors use no memory."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.inprocess.first_step import module_tree
from paceline.inprocess.first_step.saved_tensors import Kept
from paceline.plan.models.architecture import Model
from paceline.plan.models.module_tree import image_network_of, module_part, transformer_of

_SAMPLES = 2  # batch normalisation in training needs more than one value


def model_from_factory(text: str, seq: int, image: int | None = None) -> Model:
    """Create the model of ``module:factory`` (or ``file.py:factory``) on the meta device and return its architecture.

    Args:
        text: Module and name of a class, or of a function without arguments.
        seq: Tokens per sample, which cannot be read from the weights.
        image: Pixels on a side of a three-channel image, for a convolutional network.

    Raises:
        UsageError: The factory does not exist, fails, or its architecture cannot be read.
        EnvironmentFault: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise EnvironmentFault(
            "reading a model from a Python module needs torch, which is not installed; describe the model with "
            "options such as --params"
        ) from None
    factory = _factory(text)
    try:
        with torch.device("meta"):
            made = factory()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{text} failed on the meta device: {type(error).__name__}: {error}") from error
    if not isinstance(made, torch.nn.Module):
        raise UsageError(f"{text} returned a {type(made).__name__}, not a torch.nn.Module")
    part, name = module_part(module_tree.described(made)), text.rpartition(":")[2]
    if image is not None:
        return image_network_of(part, name, *_passed(made, text, image), _SAMPLES)
    if any(isinstance(each, torch.nn.modules.conv._ConvNd) for each in made.modules()):
        raise UsageError(
            f"{text} has convolutions; give the width and height of its images in pixels, such as --image 224"
        )
    return transformer_of(part, name, seq)


def _passed(module: Any, text: str, image: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Run a forward pass on images on the meta device.

    Return the recorded matrix products and convolutions, and the counts of saved tensors.
    """
    import torch

    found: list[dict[str, Any]] = []
    for each in module.modules():
        each.register_forward_hook(lambda own, _, made: found.extend(module_tree.products(own, made)))
    kept = Kept(module.train())
    kept.begin()
    try:
        module(torch.empty(_SAMPLES, 3, image, image, device="meta"))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{text} does not accept an image of 3 x {image} x {image}: {said}") from error
    finally:
        kept.end()
    return found, kept.described()


def _factory(text: str) -> Any:
    where, _, name = text.rpartition(":")
    try:
        module = _loaded(Path(where)) if where.endswith(".py") else _imported(where)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise UsageError(f"{where} has no function or class {name!r} that makes a model")
    return factory


def _imported(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
