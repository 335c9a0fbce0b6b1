"""Edits for [loader]: the number of workers, prefetching and pinned memory, and samples cached in memory.

As with the recipe, every loader is changed except those for evaluation; loaders that certainly read a stream get at
most one worker. A value that comes from an option, a configuration file or another place of the program is changed at
that place. For loaders that transformers' Trainer creates, the Trainer's arguments are changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from paceline.tune.patches import other_loaders as instantiated
from paceline.tune.patches import trainer
from paceline.tune.patches.edit import Edit
from paceline.tune.patches.other_loaders import is_evaluation
from paceline.tune.patches.placing import Placing, change_origin, find_place
from paceline.tune.patches.snippets import CACHED_SAMPLES, DRAWS_ONCE, KEPT_WORKERS
from paceline.tune.patches.source.syntax_tree import argument, code_of, value_of, with_argument, with_entry, without

EVALUATION = "evaluation_workers"
KEYS = (EVALUATION, "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "cache")
NOWHERE = "the source creates no DataLoader to which the setting applies"
_ORDER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_OURS = (KEPT_WORKERS.name, DRAWS_ONCE.name)
_CLASS = re.compile(r"^[ \t]*class\s+(\w+)\s*\(([^)]*)\)", re.MULTILINE)
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
_NAMES = cst.Name | cst.Attribute | cst.Subscript


def streams_in(texts: Iterable[str]) -> set[str]:
    """Return the names of classes that are streams of samples: direct and indirect subclasses of IterableDataset."""
    bases = {name: set(re.findall(r"\w+", given)) for text in texts for name, given in _CLASS.findall(text)}
    found = {"IterableDataset"}
    while more := {name for name, given in bases.items() if given & found} - found:
        found |= more
    return found


class LoaderEdit(Edit):
    """Changes the arguments of calls that create a DataLoader or one of the program's subclasses of DataLoader."""

    table = "loader"

    def begin(self) -> None:
        """Find the loaders, and change arguments whose values are set outside the call."""
        self._streams = streams_in(one.text for one in self.program.sources)
        self._places: dict[tuple[cst.Call, str], Placing] = {}
        for call in self.tree.within(self.tree.module, cst.Call):
            self.call(call, call)
        if self.source.is_script:
            instantiated.change(self)

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Return the edited call if it creates a loader; return other calls unchanged."""
        if not self.program.is_loader(self.tree, original):
            return trainer.with_loader(self, original, call)
        if self._is_written_elsewhere(original):
            return call
        if is_evaluation(self.program, self.tree, original):
            return self._of_evaluation(original, call)
        why = self._why_not(original)
        if why:
            for key in self.settings.keys() - {EVALUATION}:
                self.stay(key, f"{self.where(original)} {why}")
            return call
        call = self._with_workers(original, call)
        if "pin_memory" in self.settings:
            call = self._with("pin_memory", self.settings["pin_memory"], original, call)
        return self._cached(original, call) if self.settings.get("cache") else call

    def _of_evaluation(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Set the recipe's number of evaluation workers in an evaluation loader, if the recipe has such a number."""
        workers = self.settings.get(EVALUATION)
        if workers is None:
            return call
        found = self._place(original, "num_workers", workers)
        if found.where not in ("here", "over"):  # a value from elsewhere may also apply to training
            why = found.why_not or f"takes num_workers from elsewhere: give this loader num_workers={workers}"
            self.stay(EVALUATION, f"{self.where(original)} {why}")
            return call
        self.place(EVALUATION)
        if found.where == "over":
            return with_entry(call, "num_workers", repr(workers))
        return with_argument(call, "num_workers", repr(workers), self._order(original))

    def _is_written_elsewhere(self, call: cst.Call) -> bool:
        """Return whether the called class of the program sets the arguments itself, in ``super().__init__(...)``."""
        is_own = not self.program.in_subclass(self.tree, call) and self.program.has_init(self.tree, call.func)
        return is_own and self.program.hands_on(self.tree, call.func)

    def _why_not(self, call: cst.Call) -> str:
        is_part = self.program.in_subclass(self.tree, call)
        if not is_part and any(arg.star == "*" for arg in call.args):
            return "passes its arguments with * or **"
        if not is_part and self.program.has_init(self.tree, call.func):
            return f"creates a {code_of(call.func)}, which defines its own __init__"
        before = self._place(call, "num_workers", self.settings.get("num_workers", 0)).now or "0"
        after = str(self.settings.get("num_workers", before))
        if before != after and (before, after) != ("0", "1") and self._reads_stream(call):
            return "reads an IterableDataset, and each worker might read all of its samples"
        return ""

    def _place(self, call: cst.Call, key: str, value: object) -> Placing:
        if (call, key) not in self._places:
            self._places[call, key] = find_place(self.program, self.tree, call, key, value, self._order(call))
        return self._places[call, key]

    def _order(self, call: cst.Call) -> tuple[str, ...]:
        return ("", *_ORDER) if self.program.is_partial(self.tree, call) else _ORDER

    def _reads_stream(self, call: cst.Call) -> bool:
        dataset = argument(call, "dataset", _ORDER)
        if dataset is None:
            return False
        made = [dataset.value, *self._assigned(code_of(dataset.value))]
        return any(isinstance(one, cst.Call) and code_of(one.func) in self._streams for one in made)

    def _assigned(self, name: str) -> list[cst.BaseExpression]:
        lines = self.tree.within(self.tree.module, cst.Assign)
        return [one.value for one in lines if name in [code_of(target.target) for target in one.targets]]

    def _with(self, key: str, value: object, original: cst.Call, call: cst.Call, text: str = "") -> cst.Call:
        """Set an argument in the call, or change its value at the place where the program sets it.

        Args:
            key: The argument.
            value: Its value.
            original: The call as it is in the file.
            call: The call with the edits so far.
            text: The value as source text, for the call.
        """
        found = self._place(original, key, value)
        if (
            found.section is not None and text
        ):  # the value depends on another value, which a configuration file cannot express
            found = Placing(where="here")
        if found.where == "nowhere":
            self.stay(key, f"{self.where(original)} {found.why_not}")
            return call
        self.place(key)
        if found.where == "origin":
            change_origin(self.program, found, key, value)
            return call
        text = text or repr(value)
        if found.where == "over":
            return with_entry(call, key, text)
        return with_argument(call, key, text, self._order(original))

    def _with_workers(self, original: cst.Call, call: cst.Call) -> cst.Call:
        found = self._place(original, "num_workers", self.settings.get("num_workers", 0))
        if "num_workers" in self.settings and found.where == "nowhere":
            for key in (*_OF_WORKERS, "num_workers", "cache"):
                if key in self.settings:
                    self.stay(key, f"{self.where(original)} {found.why_not}")
            return call
        if "num_workers" in self.settings:
            if not self.settings["num_workers"]:
                return self._alone(original, call)
            call = self._with("num_workers", self.settings["num_workers"], original, call)
        workers = self._workers(original, found)
        if workers == "0":
            return call
        if not workers:
            given = value_of(original, "num_workers", _ORDER)
            for key in {"prefetch_factor", "persistent_workers"}.intersection(self.settings):
                why = f"has num_workers={given}, so the recipe must also set num_workers"
                self.stay(key, f"{self.where(original)} {why}")
            return call
        if "prefetch_factor" in self.settings:
            factor = self.settings["prefetch_factor"]
            text = repr(factor) if workers.isdigit() else f"{factor!r} if {workers} else None"
            call = self._with("prefetch_factor", factor, original, call, text)
        return self._kept(original, call, workers) if "persistent_workers" in self.settings else call

    def _workers(self, call: cst.Call, found: Placing) -> str:
        """Return the source text of `num_workers` after the edit.

        The text is empty if `num_workers` is an expression other than a number or a name.
        """
        wanted = self.settings.get("num_workers")
        if wanted is not None and found.where != "origin":
            return repr(wanted)
        given = argument(call, "num_workers", _ORDER)
        unpacked = [arg.value for arg in call.args if arg.star == "**"]
        if given is None:
            named = [one for one in unpacked if isinstance(one, _NAMES)]
            text = f'{code_of(named[0])}["num_workers"]' if named else repr(wanted or 0)
            return text if found.where != "here" or wanted is not None else "0"
        value = given.value
        is_cast = isinstance(value, cst.Call) and code_of(value.func) == "int" and len(value.args) == 1
        inner = value.args[0].value if isinstance(value, cst.Call) and is_cast else value
        return code_of(value) if isinstance(inner, cst.Integer | _NAMES) else ""

    def _own_class(self, call: cst.Call) -> str:
        """Return the name of the program's own loader class that a call creates.

        The name is ``super`` for ``super().__init__(...)`` in such a class, and empty for torch's class.
        """
        names = {name.rpartition(".")[2] for name in self.tree.names(call.func)}
        own = names & self.program.loader_classes
        return next(iter(own), "super" if self.program.in_subclass(self.tree, call) else "")

    def _present(self, call: cst.Call) -> str:
        """Return the current value of a loader's ``persistent_workers`` as source text."""
        text = value_of(call, "persistent_workers")
        now = self._place(call, "persistent_workers", True).now if text is None else text
        return "False" if now in (None, "false") else "True" if now == "true" else str(now)

    def _alone(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Remove the arguments about workers.

        A loader with persistent workers makes fewer random draws for shuffling. A loader class that keeps their number
        is then used.
        """
        now, own = self._present(original), self._own_class(original)
        followed = now == "False" or own in _OURS
        if not followed and (now != "True" or own or self._is_made_anew()):
            self._would_shuffle("num_workers", now, original)
            return call
        if not followed and not self.takes("num_workers", DRAWS_ONCE):
            return call
        self.place("num_workers")
        found = self._place(original, "num_workers", 0)
        if found.where != "here" or argument(original, "num_workers", _ORDER) is not None:
            call = self._with("num_workers", 0, original, call)
        call = without(call, _OF_WORKERS)
        return call if followed else _of_class(call, DRAWS_ONCE.name)

    def _would_shuffle(self, key: str, now: str, original: cst.Call) -> None:
        what = "without workers" if key == "num_workers" else "with another value"
        why = f"has persistent_workers={now}, and {what} the shuffled order would change"
        self.stay(key, f"{self.where(original)} {why}")

    def _is_made_anew(self) -> bool:
        """Return whether Accelerate creates the loaders again, as instances of torch's own class."""
        return bool(self.program.calls.get("prepare")) and any("accelerate" in s.text for s in self.program.sources)

    def _kept(self, original: cst.Call, call: cst.Call, workers: str) -> cst.Call:
        """Make the workers persistent, with a loader class that shuffles as if workers were started in each epoch."""
        now, own = self._present(original), self._own_class(original)
        wanted = "True" if workers.isdigit() else f"{workers} > 0"
        if now == repr(self.settings["persistent_workers"]) or (own in _OURS and now == wanted):
            self.place("persistent_workers")
        elif now == "False" and own in _OURS:
            return self._with("persistent_workers", True, original, call, wanted)
        elif now != "False" or own:
            self._would_shuffle("persistent_workers", now, original)
        elif self._is_made_anew():
            why = f"is given to Accelerate, which creates the loader again, without {KEPT_WORKERS.name}"
            self.stay("persistent_workers", f"{self.where(original)} {why}")
        elif self._place(original, "persistent_workers", True).where == "nowhere":
            return self._with("persistent_workers", True, original, call)
        elif self.takes("persistent_workers", KEPT_WORKERS):
            return self._with("persistent_workers", True, original, _of_class(call, KEPT_WORKERS.name), wanted)
        return call

    def _cached(self, original: cst.Call, call: cst.Call) -> cst.Call:
        if self._place(original, "num_workers", 0).now not in (None, "0") and self.settings.get("num_workers") != 0:
            self.stay("cache", f"{self.where(original)} has workers, so the recipe must also set num_workers = 0")
            return call
        if self._place(original, "num_workers", 0).where == "nowhere":
            return call
        dataset = argument(call, "dataset", _ORDER)
        if dataset is None or dataset.star or self.program.is_partial(self.tree, original):
            self.stay("cache", f"{self.where(original)} does not name its dataset: wrap it in a cache where it is made")
            return call
        if not self.takes("cache", CACHED_SAMPLES):
            return call
        self.place("cache")
        value = code_of(dataset.value)
        if value.startswith(f"{CACHED_SAMPLES.name}("):
            return call
        kept = dataset.with_changes(value=cst.parse_expression(f"{CACHED_SAMPLES.name}({value})"))
        return call.with_changes(args=[kept if arg is dataset else arg for arg in call.args])


def _of_class(call: cst.Call, name: str) -> cst.Call:
    """Return the call with another loader class, also in ``functools.partial(DataLoader, ...)``."""
    first = call.args[0] if call.args else None
    if first is not None and code_of(call.func).rpartition(".")[2] == "partial":
        return call.with_changes(args=[first.with_changes(value=cst.Name(name)), *call.args[1:]])
    return call.with_changes(func=cst.Name(name))
