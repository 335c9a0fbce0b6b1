"""What is verified before a run on several ranks; table ``[checks]`` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Which comparisons are made."""

    first_step: bool = True  # the split model with the whole one, on the first batch

    def __post_init__(self) -> None:
        if not isinstance(self.first_step, bool):
            raise UsageError(f"checks.first_step = {self.first_step!r} is not allowed; it takes true or false")
