"""Edits for [precision]: autocast of the model without the loss, and TF32."""

from __future__ import annotations

import re

import libcst as cst

from paceline.tune.patches.edit import Edit, set_unless_own
from paceline.tune.patches.snippets import IN_BF16
from paceline.tune.patches.source.models import ModelBinding

KEYS = ("autocast", "tf32")
NOWHERE = "the source creates no optimizer from the parameters of a model that it names"
_OWN = ("autocast", "GradScaler")
_TF32 = re.compile(r"torch\.set_float32_matmul_precision|torch\.backends\..*(allow_tf32|fp32_precision)")


class PrecisionEdit(Edit):
    """Makes models compute in bf16, and the whole program use TF32."""

    table = "precision"

    def begin(self) -> None:
        """Add the TF32 setting below the imports."""
        if "tf32" in self.settings:
            level = "high" if self.settings["tf32"] else "highest"
            set_unless_own(self, "tf32", f'torch.set_float32_matmul_precision("{level}")', _TF32)

    def statements(self, place: ModelBinding) -> list[str]:
        """Return the call that makes a model compute in bf16."""
        if "autocast" not in self.settings:
            return []
        own = [call for call in self.tree.within(self.tree.module, cst.Call) if self._is_own(call)]
        if own:
            self.stay("autocast", f"{self.where(own[0])} already chooses a precision")
            return []
        return self.call_of("autocast", IN_BF16, place.model)

    def _is_own(self, call: cst.Call) -> bool:
        chooses = any(name.startswith("torch.") and name.endswith(_OWN) for name in self.tree.names(call.func))
        return chooses and IN_BF16.name not in self.tree.functions_around(call)
