"""The exceptions of Paceline and their exit codes.

    PacelineError                exit code 3: a fault of ours
    ├── UsageError               exit code 2: the command line, or what it names
    ├── EnvironmentFault         exit code 2: the machine cannot do what was asked (disk full, no torch, no permission)
    └── RecordError              exit code 2: a run folder that cannot be read
        └── NewerSchemaError     written by a newer Paceline

Every message names the given value, the allowed values and the next command.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any


class PacelineError(Exception):
    """Root of every error that Paceline raises on purpose."""

    exit_code = 3


class UsageError(PacelineError):
    """The command line, or something that it names, is wrong."""

    exit_code = 2


class EnvironmentFault(PacelineError):
    """The machine cannot do what was asked."""

    exit_code = 2


class RecordError(PacelineError):
    """A run folder cannot be read."""

    exit_code = 2


class NewerSchemaError(RecordError):
    """The run folder was written by a newer Paceline."""


def nearest(word: str, choices: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the choices that are most like a word, the most similar first; none if no choice is similar.

    Args:
        word: What was given.
        choices: What is allowed.
        most: How many to return.
        cutoff: The least similarity, from 0 to 1.
    """
    from difflib import get_close_matches

    return get_close_matches(word, list(choices), n=most, cutoff=cutoff)


def did_you_mean(word: str, choices: Iterable[str], otherwise: str = "") -> str:
    """Return ``; did you mean NAME?`` for the end of a message, or ``otherwise`` if no choice is similar."""
    near = nearest(word, choices)
    return f"; did you mean {near[0]}?" if near else otherwise


def whole_number(name: str, value: Any, least: int) -> int:
    """Return a setting as an int.

    Args:
        name: The name of the setting, for the message.
        value: What was given.
        least: The smallest number that is allowed.

    Raises:
        UsageError: The value is not a whole number, or it is less than ``least``.
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise UsageError(f"{name} is {value!r}; it must be a whole number of {least} or more")
    return found
