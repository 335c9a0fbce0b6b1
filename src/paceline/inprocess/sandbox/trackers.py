"""Switch experiment trackers and uploads off in a trial, even if the program requests them in code.

This covers Weights & Biases, MLflow, Comet, Neptune, and pushes to the Hugging Face Hub. A trial sends nothing to a
service and creates nothing there. MLflow and TensorBoard write to files in the trial's folder.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from paceline.inprocess import import_hook

_PUSHES = (  # methods of huggingface_hub.HfApi
    *("create_repo", "create_commit", "create_branch", "create_tag", "create_pull_request", "upload_file"),
    *("upload_folder", "upload_large_folder", "delete_file", "delete_folder", "delete_repo", "run_as_future"),
)


def begin() -> None:
    """Switch each tracker off when the program imports it."""
    import_hook.install(dict(_ACTIONS))


def _off_wandb(wandb: Any) -> None:
    _force(wandb, "init", mode="disabled")
    wandb.login = lambda *args, **kwargs: True


def _off_mlflow(mlflow: Any) -> None:
    own = os.environ.get("MLFLOW_TRACKING_URI", "file:mlruns")
    original = mlflow.set_tracking_uri
    original(own)
    mlflow.set_tracking_uri = functools.wraps(original)(lambda *args, **kwargs: original(own))
    if hasattr(mlflow, "set_registry_uri"):
        mlflow.set_registry_uri = lambda *args, **kwargs: None


def _off_mlflow_client(module: Any) -> None:
    _force(module.MlflowClient, "__init__", tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"), registry_uri=None)


def _off_comet(comet: Any) -> None:
    for name in ("Experiment", "ExistingExperiment"):
        if hasattr(comet, name):
            _force(getattr(comet, name), "__init__", disabled=True)
    if hasattr(comet, "start"):
        _force(comet, "start", online=False)


def _off_neptune(neptune: Any) -> None:
    for name in ("init_run", "init_project", "init_model", "init_model_version", "init"):
        if hasattr(neptune, name):
            _force(neptune, name, mode="debug")


def _off_hub(module: Any) -> None:
    for name in _PUSHES:
        if hasattr(module.HfApi, name):
            setattr(module.HfApi, name, _nothing)
        if hasattr(module, name):
            setattr(module, name, _nothing)


def _off_hub_package(module: Any) -> None:
    for name in _PUSHES:
        if name in vars(module):
            setattr(module, name, _nothing)


def _off_trainer(module: Any) -> None:
    for name in ("push_to_hub", "init_hf_repo", "_push_from_checkpoint", "_finish_current_push"):
        if hasattr(module.Trainer, name):
            setattr(module.Trainer, name, _nothing)


def _off_push_mixin(module: Any) -> None:
    if hasattr(module, "PushToHubMixin"):
        module.PushToHubMixin.push_to_hub = _nothing


_ACTIONS: Mapping[str, Callable[[ModuleType], None]] = {
    "wandb": _off_wandb,
    "mlflow": _off_mlflow,
    "mlflow.tracking.client": _off_mlflow_client,
    "comet_ml": _off_comet,
    "neptune": _off_neptune,
    "huggingface_hub": _off_hub_package,
    "huggingface_hub.hf_api": _off_hub,
    "transformers.trainer": _off_trainer,
    "transformers.utils.hub": _off_push_mixin,
}


class _Nothing:
    """The result of a suppressed push: each of its attributes is the object itself, and its text is empty."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __str__(self) -> str:
        return ""


def _nothing(*args: Any, **kwargs: Any) -> Any:
    return _Nothing()


def _force(owner: Any, name: str, **forced: Any) -> None:
    """Replace a function or constructor so that some keyword arguments have fixed values."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, **forced})

    setattr(owner, name, call)
