"""[loader]: another number of workers, other hand-over, samples kept in memory.

As the recipe does it, every loader is changed, but for those of evaluation, and for those of which can be told that
they read a stream, which get one worker at most. Those that transformers' Trainer makes are changed where its arguments
are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from paceline.improve.patches import trainer
from paceline.improve.patches.arguments import argument, code_of, unpacks, value_of, with_argument, without
from paceline.improve.patches.edit import Edit
from paceline.improve.patches.options import Option, flags_in, is_given, option_of, used_only_in
from paceline.improve.patches.snippets import CACHED_SAMPLES, DRAWS_ONCE, KEPT_WORKERS

KEYS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "cache")
NOWHERE = "the source creates no DataLoader to which the setting applies"
_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_ORDER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_EVALUATION = re.compile(r"(?<![a-z])(val|valid|validation|test|testing|eval|evaluation|dev)(?![a-z])", re.IGNORECASE)
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
        self._streams = streams_in(one.text for one in self.program.sources)
        self._loaders: dict[str, cst.ClassDef] = {}
        for one in self.tree.within(self.tree.module, cst.ClassDef):
            bases = {name for base in one.bases for name in self.tree.names(base.value)}
            if bases.intersection((*_LOADER, *self._loaders)):
                self._loaders[one.name.value] = one
        calls = [call for call in self.tree.within(self.tree.module, cst.Call) if self._is_loader(call)]
        options = [self._option(call) for call in calls] if self.settings.get("num_workers") else []
        self._defaults = {option.declared for option in options if option is not None}

    def _is_loader(self, call: cst.Call) -> bool:
        return bool(self.tree.names(call.func).intersection((*_LOADER, *self._loaders)))

    def _option(self, call: cst.Call) -> Option | None:
        """Return the option that a loader takes its workers from, if its default can be changed in its place."""
        given = argument(call, "num_workers", _ORDER)
        option = option_of(self.tree, given.value) if given is not None else None
        if option is None or is_given(option.flag, self.program.command):
            return None
        return option if used_only_in(self.tree, option, self._is_loader) else None

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Edit the call where it makes a loader, or declares the option that loaders take their workers from."""
        if original in self._defaults:
            return with_argument(call, "default", repr(self.settings["num_workers"]))
        if self._makes_with_partial(original):
            for key, value in self.settings.items():
                self.stay(
                    key, f"{self.where(original)} makes loaders with functools.partial: set {key}={value!r} there"
                )
            return call
        names = self.tree.names(original.func)
        own = next((one for name, one in self._loaders.items() if name in names), None)
        if own is None and not names.intersection(_LOADER):
            return trainer.with_loader(self, original, call)
        if self._is_evaluation(original):
            return call
        why = self._why_not(original, own)
        if why:
            for key in self.settings:
                self.stay(key, why)
            return call
        call = self._with_workers(original, call, own)
        if "pin_memory" in self.settings:
            call = self._with("pin_memory", repr(self.settings["pin_memory"]), call)
        return self._cached(original, call) if self.settings.get("cache") else call

    def _makes_with_partial(self, call: cst.Call) -> bool:
        """Say whether a call is ``functools.partial(DataLoader, ...)``."""
        if "functools.partial" not in self.tree.names(call.func) or not call.args:
            return False
        return bool(self.tree.names(call.args[0].value).intersection((*_LOADER, *self._loaders)))

    def _is_evaluation(self, call: cst.Call) -> bool:
        """Say whether a loader is one of evaluation by its name or that of its dataset, and does not shuffle.

        A recipe leaves such loaders alone, too: it sees that gradients are switched off.
        """
        if any(argument(call, name, _ORDER) is not None for name in ("sampler", "batch_sampler")):
            return False
        if (value_of(call, "shuffle", _ORDER) or "False") != "False":
            return False
        dataset = argument(call, "dataset", _ORDER)
        names = [code_of(dataset.value)] if dataset is not None else []
        assign = next((one for one in self.tree.above(call) if isinstance(one, cst.Assign)), None)
        names += [code_of(target.target) for target in assign.targets] if assign is not None else []
        return any(_EVALUATION.search(name) for name in names)

    def _why_not(self, call: cst.Call, own: cst.ClassDef | None) -> str:
        if unpacks(call):
            return f"{self.where(call)} passes its arguments with * or **"
        if own is not None and any(one.name.value == "__init__" for one in self.tree.within(own, cst.FunctionDef)):
            return f"{self.where(call)} creates a {own.name.value}, which defines its own __init__"
        option = self._option(call)
        before = option.default if option is not None else value_of(call, "num_workers", _ORDER) or "0"
        after = str(self.settings.get("num_workers", before))
        if before != after and (before, after) != ("0", "1") and self._reads_stream(call):
            return f"{self.where(call)} reads an IterableDataset, and each worker might read all of its samples"
        return self._flags(call) if option is None and "num_workers" in self.settings else ""

    def _flags(self, call: cst.Call) -> str:
        """Say from which flags a loader takes its workers, if it does: a number in their place would ignore them."""
        given = argument(call, "num_workers", _ORDER)
        flags = flags_in(given.value, (one.text for one in self.program.sources)) if given is not None else []
        if given is None or not flags:
            return ""
        names, workers = " and ".join(flags), self.settings["num_workers"]
        return f"{self.where(call)} has num_workers={code_of(given.value)}: set {names} for {workers} workers"

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
            if not self.settings["num_workers"]:
                return self._alone(original, call, own)
            if self._option(original) is not None:
                self.place("num_workers")
            else:
                workers = repr(self.settings["num_workers"])
                call = self._with("num_workers", workers, call)
        if workers == "0":
            return call
        if not workers.isdigit() and not workers.replace(".", "").isidentifier():
            for key in {"prefetch_factor", "persistent_workers"}.intersection(self.settings):
                self.stay(
                    key, f"{self.where(original)} has num_workers={workers}, so the recipe must also set num_workers"
                )
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
            why = (
                f"{self.where(original)} has persistent_workers={now}, and without workers the shuffled order "
                f"would change"
            )
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
            why = (
                f"{self.where(original)} has persistent_workers={now}, and with another value the shuffled order "
                f"would change"
            )
            self.stay("persistent_workers", why)
        elif self.takes("persistent_workers", KEPT_WORKERS):
            call = call.with_changes(func=cst.Name(KEPT_WORKERS.name))
            return self._with("persistent_workers", wanted, call)
        return call

    def _cached(self, original: cst.Call, call: cst.Call) -> cst.Call:
        if value_of(call, "num_workers", _ORDER) not in (None, "0"):
            self.stay("cache", f"{self.where(original)} has workers, so the recipe must also set num_workers = 0")
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
