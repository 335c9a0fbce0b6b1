"""Edits for [optimizer]: one kernel updates all parameters, unless the program chooses an implementation."""

from __future__ import annotations

import libcst as cst

from paceline.tune.patches.edit import Edit
from paceline.tune.patches.source.syntax_tree import unpacks, value_of, with_argument

KEYS = ("fused", "foreach")
NOWHERE = "the source creates no optimizer of torch.optim that supports the setting"
_FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
_FOREACH = (*_FUSED, "ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
_HAVE = {"fused": _FUSED, "foreach": _FOREACH}


class OptimizerEdit(Edit):
    """Adds ``fused=True`` or ``foreach=True`` to the calls that create optimizers."""

    table = "optimizer"

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Return the edited call if it creates an optimizer; return other calls unchanged."""
        kinds = {name.rpartition(".")[2] for name in self.tree.names(original.func) if name.startswith("torch.optim.")}
        for key in KEYS:
            if self.settings.get(key) and kinds and kinds <= set(_HAVE[key]):
                call = self._with(key, original, call)
        return call

    def _with(self, key: str, original: cst.Call, call: cst.Call) -> cst.Call:
        chosen = {name: value_of(call, name) for name in KEYS}
        other = [f"{name}={value}" for name, value in chosen.items() if value not in (None, "None")]
        if other == [f"{key}=True"]:
            self.place(key)
        elif unpacks(original):
            self.stay(key, f"{self.where(original)} passes its arguments with * or **")
        elif other:
            self.stay(key, f"{self.where(original)} has {', '.join(other)}")
        else:
            self.place(key)
            return with_argument(call, key, "True")
        return call
