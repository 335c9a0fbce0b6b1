"""The exceptions of Paceline and their exit codes.

    PacelineError                exit code 3: a fault in Paceline
    ├── UsageError               exit code 2: the command line, or a file that it names, is wrong
    ├── EnvironmentFault         exit code 2: the machine cannot do what was asked (disk full, no torch, no permission)
    └── RecordError              exit code 2: a run folder that cannot be read
        └── NewerSchemaError     the run folder was written by a newer Paceline

Every message names the given value, the allowed values and the next command.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any


class PacelineError(Exception):
    """Base class of the errors that Paceline raises on purpose."""

    exit_code = 3


class UsageError(PacelineError):
    """The command line is wrong, or a file or value that it names is wrong."""

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
    """Return the choices that are most similar to a word, the most similar first; empty if no choice is similar.

    Args:
        word: The word that the user gave.
        choices: The allowed words.
        most: The largest number of choices to return.
        cutoff: The least similarity, from 0 to 1.
    """
    from difflib import get_close_matches

    return get_close_matches(word, list(choices), n=most, cutoff=cutoff)


def did_you_mean(word: str, choices: Iterable[str], otherwise: str = "") -> str:
    """Return ``; did you mean NAME?`` for the end of a message, or ``otherwise`` if no choice is similar."""
    near = nearest(word, choices)
    return f"; did you mean {near[0]}?" if near else otherwise


def whole_number(name: str, value: Any, least: int) -> int:
    """Return the value of a setting as an int.

    Args:
        name: The name of the setting, for the message.
        value: The value that the user gave.
        least: The smallest allowed number.

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
