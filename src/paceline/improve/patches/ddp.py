"""[ddp]: how DistributedDataParallel exchanges gradients."""

from __future__ import annotations

import libcst as cst

from paceline.improve.patches.arguments import unpacks, value_of, with_argument
from paceline.improve.patches.edit import Edit

_USUAL = ("None", "False", "25")  # what is no choice
KEYS = ("bucket_cap_mb", "static_graph", "gradient_as_bucket_view")
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
    """Gives DistributedDataParallel the keywords that the program does not choose itself."""

    table = "ddp"

    def call(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """Edit the call where it wraps a model."""
        if not self.tree.names(original.func).intersection(_PLACES):
            return call
        for key in KEYS:
            if key in self.settings:
                call = self._with(key, original, call)
        return call

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
