"""Which libraries spread training themselves? They do, and are told how many ranks there are.

Hugging Face's Trainer and Lightning's read a launcher's variables, deal out samples, wrap the model and save on rank
0. Left to them as they are, a batch would be n times as large, so each rank is given 1/n of it; and Lightning would
log one rank's part.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
from typing import Any

from paceline.observe.probe import lazy
from paceline.train.unmodified import dealt
from paceline.train.unmodified.state import Spread

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def patch(spread: Spread) -> None:
    """Wait for them."""
    actions: dict[str, Any] = {
        "transformers.training_args": lambda module: _patch_arguments(spread, module),
        "transformers.trainer": lambda module: _patch_hf_trainer(module.Trainer),
        "accelerate.data_loader": lambda module: _patch_deal(spread, module.BatchSamplerShard),
    }
    for name in _LIGHTNING:
        actions[f"{name}.trainer.trainer"] = lambda module: _patch_trainer(spread, module.Trainer)
        actions[f"{name}.trainer.connectors.data_connector"] = lambda module: _patch_loaders(spread, module)
        for strategy in ("ddp", "fsdp"):
            actions[f"{name}.strategies.{strategy}"] = _keep_drawing
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


def _patch_deal(spread: Spread, kind: Any) -> None:
    """Have Hugging Face's Trainer deal out the batches of one process; it fills a short one up with other samples."""
    original = kind.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        if not spread.off or self.split_batches or self.num_processes != spread.ranks:
            return original(self)
        weighs = getattr(self, "_paceline_weighs", False)
        return dealt.of_small(self.batch_sampler, spread.ranks, spread.rank, weighs=weighs)

    kind.__iter__ = __iter__


def _patch_weighing(kind: Any) -> None:
    """Note where a loss is weighed by its targets over all ranks: there ranks may have unlike numbers of rows."""
    original = kind.get_train_dataloader

    @functools.wraps(original)
    def get_train_dataloader(self: Any) -> Any:
        found = original(self)
        by_targets = getattr(self, "model_accepts_loss_kwargs", False) or getattr(self, "compute_loss_func", None)
        if by_targets and getattr(self.args, "average_tokens_across_devices", False):
            found.batch_sampler._paceline_weighs = True
        return found

    kind.get_train_dataloader = get_train_dataloader


def _patch_hf_trainer(kind: Any) -> None:
    _patch_weighing(kind)
    _patch_evaluation(kind)


def _patch_evaluation(kind: Any) -> None:
    """Have each rank evaluate all that one process does: a mean over parts of a batch would be another one."""
    make, evaluate = kind._get_dataloader, kind.evaluation_loop
    signature = inspect.signature(make)

    @functools.wraps(make)
    def _get_dataloader(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = make(self, *args, **kwargs)
        if not signature.bind(self, *args, **kwargs).arguments.get("is_training", False):
            _unshard(found)
        return found

    @functools.wraps(evaluate)
    def evaluation_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.gather_function = functools.partial(_gathered, self.accelerator)
        return evaluate(self, *args, **kwargs)

    kind._get_dataloader, kind.evaluation_loop = _get_dataloader, evaluation_loop


def _gathered(accelerator: Any, own: Any, **_: Any) -> Any:
    """Return what Accelerate makes of one process's part: it has all, and its last batch is cut to its length."""
    accelerator.gather = lambda tensor: tensor
    try:
        return accelerator.gather_for_metrics(own)
    finally:
        del accelerator.gather


def _unshard(loader: Any) -> None:
    """Give a loader all batches of one process, which Accelerate has dealt out; a DataLoader lets nobody set them."""
    for each in (loader, getattr(loader, "base_dataloader", loader)):
        for name in ("batch_sampler", "dataset"):
            shard = getattr(each, name)
            if hasattr(shard, "num_processes"):
                object.__setattr__(each, name, getattr(shard, name))


def _keep_drawing(module: Any) -> None:
    """Keep Lightning from beginning random numbers anew once ranks have met, which one process does not do."""
    module.reset_seed = lambda: None


def _patch_loaders(spread: Spread, module: Any) -> None:
    """Give each rank its part of a batch that is trained with, and all of what is evaluated."""
    from torch.utils.data import DataLoader

    kind, training = module._DataConnector, module.RunningStage.TRAINING
    original = kind._prepare_dataloader
    signature = inspect.signature(original)

    @functools.wraps(original)
    def _prepare_dataloader(self: Any, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, dataloader, *args, **kwargs)
        if bound.arguments["mode"] != training or not isinstance(dataloader, DataLoader):
            return dataloader
        _check_loader(spread, dataloader)
        found = copy.copy(dataloader)
        # A DataLoader refuses to be given another batch sampler; all else of it is to stay.
        object.__setattr__(found, "batch_sampler", dealt.Parts(spread, dataloader.batch_sampler))
        return found

    kind._prepare_dataloader = _prepare_dataloader


def _check_loader(spread: Spread, loader: Any) -> None:
    """Refuse what Lightning's ranks cannot share so that their mean is that of one process."""
    from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset

    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        spread.refuse(
            f"the samples of {type(loader.dataset).__name__} cannot be dealt out to ranks; give a dataset with "
            "__getitem__ and __len__, and a batch_size"
        )
    if isinstance(loader.sampler, DistributedSampler):
        spread.refuse("the loader has a DistributedSampler already; leave it out, or leave --layout out")
    if type(loader.batch_sampler) is not BatchSampler:
        return
    _share(spread, loader.batch_size, "batch_size")
    last = len(loader.sampler) % loader.batch_size
    if last % spread.ranks and not loader.drop_last:
        spread.refuse(dealt.uneven(last, spread.ranks))


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
