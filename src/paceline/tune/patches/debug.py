"""Edits for [debug]: calls that turn debug settings of torch on are changed to turn them off."""

from __future__ import annotations

import libcst as cst

from paceline.tune.patches.edit import Edit
from paceline.tune.patches.source.syntax_tree import code_of, value_of, with_argument

KEYS = ("anomaly_detection", "deterministic_algorithms")
NOWHERE = "the source does not turn the setting on"
_SWITCHES = {
    "torch.autograd.set_detect_anomaly": "anomaly_detection",
    "torch.autograd.anomaly_mode.set_detect_anomaly": "anomaly_detection",
    "torch.use_deterministic_algorithms": "deterministic_algorithms",
}
_CONTEXTS = ("torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly")
_TRAINERS = ("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer")
_OF_TRAINER = {"detect_anomaly": "anomaly_detection", "deterministic": "deterministic_algorithms"}


class DebugEdit(Edit):
    """Turns off debug settings that the program turns on with a literal value."""

    table = "debug"

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Edit calls of torch's debug functions, the anomaly context manager, and Lightning's Trainer."""
        names = self.tree.names(original.func)
        for name, key in _SWITCHES.items():
            if name in names and key in self.settings:
                return self._off(key, "mode", ("mode",), original, call)
        if names.intersection(_CONTEXTS) and "anomaly_detection" in self.settings:
            return self._context(original, call)
        if names.intersection(_TRAINERS):
            for argument, key in _OF_TRAINER.items():
                if key in self.settings and value_of(call, argument) is not None:
                    call = self._off(key, argument, (), original, call)
        return call

    def _off(self, key: str, argument: str, order: tuple[str, ...], original: cst.Call, call: cst.Call) -> cst.Call:
        given = value_of(call, argument, order)
        if given == "False":
            return call
        if given != "True":
            self.stay(key, f"{self.where(original)} has {code_of(original)}; give it the value False there")
            return call
        self.place(key)
        return with_argument(call, argument, "False", order)

    def _context(self, original: cst.Call, call: cst.Call) -> cst.Call:
        if not isinstance(call.func, cst.Attribute):
            self.stay("anomaly_detection", f"remove {code_of(original)} in {self.where(original)}")
            return call
        self.place("anomaly_detection")
        function = call.func.with_changes(attr=cst.Name("set_detect_anomaly"))
        return call.with_changes(func=function, args=[cst.Arg(cst.Name("False"))])
