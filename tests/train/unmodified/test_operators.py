"""Operators that a program applies to sharded weights give what they give for whole weights."""

from __future__ import annotations

import pytest
from tests.train.unmodified.test_unmodified import HERE, paceline


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        (["function", "float32"], 800),
        (["function", "int64", "bool"], 800),
        (["method", "float32"], 300),
        (["inplace", "float32"], 150),
        (["second", "float32"], 200),
    ],
    ids=["function", "of whole numbers", "method", "in place", "second"],
)
def test_operators_of_sharded_tensors_are_those_of_whole_tensors(tmp_path, arguments, least):
    """Also of tensors with fewer rows than ranks, of which one rank has nothing."""
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", "shard=2", HERE / "operators.py", *arguments)
    *wrong, tried = done.stdout.splitlines() or [done.stderr]
    assert wrong == []
    assert int(tried.removeprefix("tried ")) >= least
