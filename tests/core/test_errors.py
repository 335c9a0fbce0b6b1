from __future__ import annotations

import pytest

from paceline.core.errors import (
    EnvironmentFault,
    NewerSchemaError,
    PacelineError,
    RecordError,
    UsageError,
    did_you_mean,
    nearest,
    whole_number,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [(PacelineError, 3), (UsageError, 2), (EnvironmentFault, 2), (RecordError, 2), (NewerSchemaError, 2)],
)
def test_each_error_has_the_exit_code_of_its_kind(error: type[PacelineError], code: int) -> None:
    assert error.exit_code == code


def test_the_nearest_choice_comes_first() -> None:
    assert nearest("repot", ["compare", "report", "repo"], most=2) == ["report", "repo"]
    assert nearest("zzz", ["compare", "report"]) == []
    assert nearest("plane", ["plan"], cutoff=0.9) == []


def test_a_hint_names_the_nearest_choice_or_says_something_else() -> None:
    assert did_you_mean("repot", ["compare", "report"]) == "; did you mean report?"
    assert did_you_mean("zzz", ["report"], otherwise="; there is: report") == "; there is: report"
    assert did_you_mean("zzz", ["report"]) == ""


def test_a_whole_number_is_an_int_that_is_large_enough() -> None:
    assert whole_number("size", 3, 1) == 3
    for wrong in (0, 1.0, "2", None):
        with pytest.raises(UsageError, match="size is .*; it must be a whole number of 1 or more"):
            whole_number("size", wrong, 1)
