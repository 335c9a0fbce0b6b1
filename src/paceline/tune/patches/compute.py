"""Edits for [compute]: torch.compile, channels-last, the number of compute threads, and cuDNN's benchmark mode."""

from __future__ import annotations

import re

import libcst as cst

from paceline.tune.patches.edit import Edit, add_call, set_unless_own, with_value
from paceline.tune.patches.snippets import CHANNELS_LAST, COMPILE_WHOLE
from paceline.tune.patches.source.models import ModelBinding
from paceline.tune.patches.source.syntax_tree import code_of

KEYS = ("num_threads", "cudnn_benchmark", "channels_last", "compile")
NOWHERE = "the source creates no optimizer from the parameters of a model that it names"
_THREADS = "set_num_threads"
_CUDNN = re.compile(r"torch\.backends\.cudnn\.benchmark")


class ComputeEdit(Edit):
    """Compiles models, makes them channels-last, and sets the number of compute threads."""

    table = "compute"

    def begin(self) -> None:
        """Add the process-wide settings below the imports."""
        if self.settings.get("cudnn_benchmark"):
            set_unless_own(self, "cudnn_benchmark", "torch.backends.cudnn.benchmark = True", _CUDNN)
        if "num_threads" in self.settings:
            add_call(self, "num_threads", _THREADS, repr(self.settings["num_threads"]))

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Return a call of `torch.set_num_threads` with the recipe's number of threads, and other calls unchanged."""
        if "num_threads" not in self.settings:
            return call
        return with_value(self, _THREADS, repr(self.settings["num_threads"]), original, call)

    def statements(self, place: ModelBinding) -> list[str]:
        """Return the statements that make a model channels-last and compile it."""
        found = self.call_of("channels_last", CHANNELS_LAST, place.model) if self.settings.get("channels_last") else []
        return [*found, *self._compile(place)] if "compile" in self.settings else found

    def _compile(self, place: ModelBinding) -> list[str]:
        mode = "" if self.settings["compile"] == "default" else f'mode="{self.settings["compile"]}"'
        whole = any(name.startswith("torch.nn.") for name in place.made_by)
        wanted = f"{COMPILE_WHOLE.name}({', '.join(filter(None, [place.model, mode]))})"
        wanted = wanted if whole else f"{place.model}.compile({mode})"
        own = [call for call in self.tree.within(self.tree.module, cst.Call) if self._compiles(call, place.model)]
        if wanted not in place.beside and own:
            self.stay("compile", f"{self.where(own[0])} already compiles the model")
            return []
        if whole and not self.takes("compile", COMPILE_WHOLE):
            return []
        self.place("compile")
        return [wanted]

    def _compiles(self, call: cst.Call, model: str) -> bool:
        own = "torch.compile" in self.tree.names(call.func) or code_of(call.func) == f"{model}.compile"
        return own and COMPILE_WHOLE.name not in self.tree.functions_around(call)
