"""Which libraries spread training themselves? They do, and are told how many ranks there are.

Hugging Face's Trainer and Lightning's read a launcher's variables, deal out samples, wrap the model and save on rank
0. Left to them as they are, a batch would be n times as large, so each rank is given 1/n of it; and Lightning would
log one rank's part.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

from paceline.observe.probe import lazy
from paceline.train.unmodified.state import Spread

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def patch(spread: Spread) -> None:
    """Wait for them."""
    actions: dict[str, Any] = {"transformers.training_args": lambda module: _patch_arguments(spread, module)}
    for name in _LIGHTNING:
        actions[f"{name}.trainer.trainer"] = lambda module: _patch_trainer(spread, module.Trainer)
        actions[f"{name}.trainer.connectors.data_connector"] = lambda module: _patch_loaders(spread, module)
        actions[f"{name}.core.module"] = lambda module: _patch_log(spread, module.LightningModule)
    lazy.install(actions)


def _hand_over(spread: Spread, library: str) -> None:
    """Leave the rest to a library, which finds what torchrun would have told it."""
    if spread.off:
        return
    if spread.calls:
        spread.refuse(f"the program trains by itself and then by {library}; run them one after the other")
    spread.off = True
    rank, ranks = str(spread.rank), str(spread.ranks)
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": "0"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(spread.port), "TORCHELASTIC_RUN_ID": "paceline"}
    os.environ.update(told | meeting)
    if spread.devices is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = spread.devices


def _share(spread: Spread, size: int, what: str) -> int:
    """Return a rank's part of a batch."""
    if size % spread.ranks:
        spread.refuse(
            f"{what} is {size}, which {spread.ranks} ranks cannot share equally; take "
            f"{max(1, round(size / spread.ranks)) * spread.ranks}"
        )
    return size // spread.ranks


def _check_layout(spread: Spread, library: str) -> None:
    if spread.layout.dp > 1 and spread.layout.shard > 1:
        spread.refuse(f"{library} takes dp or shard, one at a time; give dp={spread.ranks} or shard={spread.ranks}")
    if spread.layout.shard > 1 and not spread.torch.cuda.is_available():
        spread.refuse(f"{library} splits weights on GPUs only; give dp={spread.ranks}")


def _patch_arguments(spread: Spread, module: Any) -> None:
    kind = module.TrainingArguments
    original = kind.__post_init__

    @functools.wraps(original)
    def __post_init__(self: Any) -> None:
        _check_layout(spread, "Hugging Face's Trainer")
        _hand_over(spread, "Hugging Face's Trainer")
        size = self.per_device_train_batch_size
        if not getattr(self, "_paceline_shared", False):
            self.per_device_train_batch_size = _share(spread, size, "per_device_train_batch_size")
            if self.per_device_eval_batch_size % spread.ranks == 0:
                self.per_device_eval_batch_size //= spread.ranks
            self._paceline_shared = True
        if spread.layout.shard > 1 and not self.fsdp:
            self.fsdp = True
        original(self)

    kind.__post_init__ = __post_init__


def _patch_trainer(spread: Spread, trainer: Any) -> None:
    original = trainer.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _check_layout(spread, "Lightning")
        given = kwargs.get("strategy", "auto")
        if given != "auto":
            spread.refuse(f"the program gives Lightning strategy={given!r} itself; leave it out, or leave --layout out")
        _hand_over(spread, "Lightning")
        kwargs |= {"devices": spread.ranks, "strategy": "fsdp" if spread.layout.shard > 1 else "ddp", "num_nodes": 1}
        original(self, *args, **kwargs)

    trainer.__init__ = __init__


def _patch_loaders(spread: Spread, module: Any) -> None:
    """Give each rank its part of a batch that is trained with, and all of what is evaluated."""
    from torch.utils.data import DataLoader, SequentialSampler

    kind, training = module._DataConnector, module.RunningStage.TRAINING
    original = kind._prepare_dataloader
    signature = inspect.signature(original)

    @functools.wraps(original)
    def _prepare_dataloader(self: Any, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, dataloader, *args, **kwargs)
        if bound.arguments["mode"] != training or not isinstance(dataloader, DataLoader):
            return dataloader
        bound.arguments["shuffle"] = not isinstance(dataloader.sampler, SequentialSampler)  # else it always shuffles
        found = original(*bound.args, **bound.kwargs)
        if found is dataloader:
            spread.refuse(
                f"Lightning cannot deal out the samples of {type(dataloader.dataset).__name__}; give a dataset with "
                "__getitem__ and __len__, and no DistributedSampler"
            )
        batches = found.batch_sampler
        batches.batch_size = _share(spread, batches.batch_size, "batch_size")
        return found

    kind._prepare_dataloader = _prepare_dataloader


def _patch_log(spread: Spread, kind: Any) -> None:
    """Log what is of all ranks."""
    original = kind.log
    signature = inspect.signature(original)

    @functools.wraps(original)
    def log(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments["sync_dist"] = True
        return original(*bound.args, **bound.kwargs)

    kind.log = log
