"""Edits for [ddp]: how DistributedDataParallel exchanges gradients."""

from __future__ import annotations

import libcst as cst

from paceline.tune.patches.edit import Edit
from paceline.tune.patches.placing import change_origin, find_place
from paceline.tune.patches.source.program import last_name
from paceline.tune.patches.source.syntax_tree import argument, unpacks, value_of, with_argument

_USUAL = ("None", "False", "25")  # values that count as not chosen by the program
_SEARCHES = "find_unused_parameters"
KEYS = ("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", _SEARCHES)
_OF_OTHERS = {  # calls that pass an argument on to DDP
    "DDPStrategy": _SEARCHES,
    "DistributedDataParallelKwargs": _SEARCHES,
    "TrainingArguments": f"ddp_{_SEARCHES}",
}
NOWHERE = "the source does not call DistributedDataParallel"
_PLACES = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
_ORDER = (
    "module",
    "device_ids",
    "output_device",
    "dim",
    "broadcast_buffers",
    "init_sync",
    "process_group",
    "bucket_cap_mb",
)


class DdpEdit(Edit):
    """Adds keyword arguments to calls of DistributedDataParallel, unless the program sets these arguments itself."""

    table = "ddp"

    def begin(self) -> None:
        """Register the changes of DDP arguments whose values are set outside the call, as in a configuration file."""
        for call in self.tree.within(self.tree.module, cst.Call):
            self.call(call, call)

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Return the edited call if it wraps a model in DDP or configures DDP; return other calls unchanged."""
        if last_name(original.func) in _OF_OTHERS and _SEARCHES in self.settings:
            return self._without_search(_OF_OTHERS[last_name(original.func)], original, call)
        if not self.tree.names(original.func).intersection(_PLACES):
            return call
        if _SEARCHES in self.settings:
            call = self._without_search(_SEARCHES, original, call)
        for key in KEYS:
            if key in self.settings and key != _SEARCHES:
                call = self._with(key, original, call)
        return call

    def _without_search(self, name: str, original: cst.Call, call: cst.Call) -> cst.Call:
        """Return the call with the search for unused parameters turned off.

        If the argument's value is defined elsewhere in the program, that definition is changed instead.
        """
        if argument(original, name) is None:
            return call
        found = find_place(self.program, self.tree, original, name, False)
        if found.where == "nowhere":
            self.stay(_SEARCHES, f"{self.where(original)} {found.why_not}")
            return call
        self.place(_SEARCHES)
        if found.where == "origin":
            change_origin(self.program, found, name, False)
            return call
        return with_argument(call, name, "False")

    def _with(self, key: str, original: cst.Call, call: cst.Call) -> cst.Call:
        given, wanted = value_of(call, key, _ORDER), repr(self.settings[key])
        if given not in (None, wanted, *_USUAL):
            self.stay(key, f"{self.where(original)} already passes {key}={given}")
        elif given is None and unpacks(original):
            self.stay(key, f"{self.where(original)} passes its arguments with * or **")
        else:
            self.place(key)
            return with_argument(call, key, wanted, _ORDER)
        return call
