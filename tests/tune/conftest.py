"""Fixtures that run small programs under a recipe."""

from __future__ import annotations

from tests.inprocess.conftest import ran, ran_on_ranks

__all__ = ["ran", "ran_on_ranks"]
