"""[loader]: another number of workers, other hand-over, samples kept in memory.

As the recipe does it, every loader is changed, but for those of which can be told that they read a stream, which get
one worker at most. Those that transformers' Trainer makes are changed where its arguments are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from paceline.improve.patches import trainer
from paceline.improve.patches.arguments import argument, code_of, unpacks, value_of, with_argument, without
from paceline.improve.patches.edit import Edit
from paceline.improve.patches.snippets import CACHED_SAMPLES, DRAWS_ONCE, KEPT_WORKERS

KEYS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "cache")
NOWHERE = "no DataLoader(...) that it applies to is made"
_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_ORDER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_OURS = (KEPT_WORKERS.name, DRAWS_ONCE.name)
_CLASS = re.compile(r"^[ \t]*class\s+(\w+)\s*\(([^)]*)\)", re.MULTILINE)
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")


def streams_in(texts: Iterable[str]) -> set[str]:
    """Return the names of the classes that are streams of samples, also by way of each other."""
    bases = {name: set(re.findall(r"\w+", given)) for text in texts for name, given in _CLASS.findall(text)}
    found = {"IterableDataset"}
    while more := {name for name, given in bases.items() if given & found} - found:
        found |= more
    return found


class LoaderEdit(Edit):
    """Changes the arguments of DataLoader, and of classes made from it."""

    table = "loader"

    def begin(self) -> None:
        """Find the classes of streams, and the file's own classes of loaders."""
        self._streams = streams_in(one.text for one in self.program)
        self._loaders: dict[str, cst.ClassDef] = {}
        for one in self.tree.within(self.tree.module, cst.ClassDef):
            bases = {name for base in one.bases for name in self.tree.names(base.value)}
            if bases.intersection((*_LOADER, *self._loaders)):
                self._loaders[one.name.value] = one

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Edit the call where it makes a loader."""
        names = self.tree.names(original.func)
        own = next((one for name, one in self._loaders.items() if name in names), None)
        if own is None and not names.intersection(_LOADER):
            return trainer.with_loader(self, original, call)
        why = self._why_not(original, own)
        if why:
            for key in self.settings:
                self.stay(key, why)
            return call
        call = self._with_workers(original, call, own)
        if "pin_memory" in self.settings:
            call = self._with("pin_memory", repr(self.settings["pin_memory"]), call)
        return self._cached(original, call) if self.settings.get("cache") else call

    def _why_not(self, call: cst.Call, own: cst.ClassDef | None) -> str:
        if unpacks(call):
            return f"{self.where(call)} gives its arguments by * or **"
        if own is not None and any(one.name.value == "__init__" for one in self.tree.within(own, cst.FunctionDef)):
            return f"{self.where(call)} makes a {own.name.value}, which has an __init__ of its own"
        before = value_of(call, "num_workers", _ORDER) or "0"
        after = str(self.settings.get("num_workers", before))
        if before != after and (before, after) != ("0", "1") and self._reads_stream(call):
            return f"{self.where(call)} reads a stream, which every worker might read whole"
        return ""

    def _reads_stream(self, call: cst.Call) -> bool:
        dataset = argument(call, "dataset", _ORDER)
        if dataset is None:
            return False
        made = [dataset.value, *self._assigned(code_of(dataset.value))]
        return any(isinstance(one, cst.Call) and code_of(one.func) in self._streams for one in made)

    def _assigned(self, name: str) -> list[cst.BaseExpression]:
        lines = self.tree.within(self.tree.module, cst.Assign)
        return [one.value for one in lines if name in [code_of(target.target) for target in one.targets]]

    def _with(self, key: str, value: str, call: cst.Call) -> cst.Call:
        self.place(key)
        return with_argument(call, key, value, _ORDER)

    def _with_workers(self, original: cst.Call, call: cst.Call, own: cst.ClassDef | None) -> cst.Call:
        workers = value_of(call, "num_workers", _ORDER) or "0"
        if "num_workers" in self.settings:
            workers = repr(self.settings["num_workers"])
            if workers == "0":
                return self._alone(original, call, own)
            call = self._with("num_workers", workers, call)
        if workers == "0":
            return call
        if not workers.isdigit() and not workers.replace(".", "").isidentifier():
            for key in {"prefetch_factor", "persistent_workers"}.intersection(self.settings):
                self.stay(key, f"{self.where(original)} has num_workers={workers}: set num_workers in the recipe too")
            return call
        if "prefetch_factor" in self.settings:
            factor = repr(self.settings["prefetch_factor"])
            known = factor if workers.isdigit() else f"{factor} if {workers} else None"
            call = self._with("prefetch_factor", known, call)
        return self._kept(original, call, workers, own) if "persistent_workers" in self.settings else call

    def _alone(self, original: cst.Call, call: cst.Call, own: cst.ClassDef | None) -> cst.Call:
        """Take away what is said of workers; who kept them drew fewer random numbers, and still does."""
        now = value_of(call, "persistent_workers") or "False"
        followed = now == "False" or (own is not None and own.name.value in _OURS)
        if not followed and (now != "True" or own is not None):
            why = f"{self.where(original)} has persistent_workers={now}: without workers it would shuffle otherwise"
            self.stay("num_workers", why)
            return call
        if not followed and not self.takes("num_workers", DRAWS_ONCE):
            return call
        self.place("num_workers")
        given = argument(call, "num_workers", _ORDER)
        call = call if given is None else with_argument(call, "num_workers", "0", _ORDER)
        call = without(call, _OF_WORKERS)
        return call if followed else call.with_changes(func=cst.Name(DRAWS_ONCE.name))

    def _kept(self, original: cst.Call, call: cst.Call, workers: str, own: cst.ClassDef | None) -> cst.Call:
        """Keep the workers, by a loader that shuffles as if they were new."""
        now = value_of(call, "persistent_workers") or "False"
        wanted = "True" if workers.isdigit() else f"{workers} > 0"
        ours = own is not None and own.name.value in _OURS
        if now == repr(self.settings["persistent_workers"]) or (ours and now == wanted):
            self.place("persistent_workers")
        elif now == "False" and ours:
            return self._with("persistent_workers", wanted, call)
        elif now != "False" or own is not None:
            why = f"{self.where(original)} has persistent_workers={now}: with another value it would shuffle otherwise"
            self.stay("persistent_workers", why)
        elif self.takes("persistent_workers", KEPT_WORKERS):
            call = call.with_changes(func=cst.Name(KEPT_WORKERS.name))
            return self._with("persistent_workers", wanted, call)
        return call

    def _cached(self, original: cst.Call, call: cst.Call) -> cst.Call:
        if value_of(call, "num_workers", _ORDER) not in (None, "0"):
            self.stay("cache", f"{self.where(original)} has workers: set num_workers = 0 in the recipe too")
            return call
        dataset = argument(call, "dataset", _ORDER)
        if dataset is None or not self.takes("cache", CACHED_SAMPLES):
            return call
        self.place("cache")
        value = code_of(dataset.value)
        if value.startswith(f"{CACHED_SAMPLES.name}("):
            return call
        kept = dataset.with_changes(value=cst.parse_expression(f"{CACHED_SAMPLES.name}({value})"))
        return call.with_changes(args=[kept if arg is dataset else arg for arg in call.args])
