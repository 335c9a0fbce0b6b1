"""[ddp]: how DistributedDataParallel exchanges gradients."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from paceline.improve.child import held


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Change every model that is wrapped from now on; what the program gives itself stays."""
    kind = torch.nn.parallel.DistributedDataParallel
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for key, value in settings.items():
            if key in kwargs:
                held.refused(f"ddp.{key}", f"the program gives {key}={kwargs[key]} itself")
            else:
                held.took(f"ddp.{key}", f"DistributedDataParallel({key}={value})")
        original(self, *args, **{**settings, **kwargs})

    kind.__init__ = __init__
