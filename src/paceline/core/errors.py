"""The exceptions of Paceline and their exit codes.

    PacelineError                exit code 3: a fault of ours
    ├── UsageError               exit code 2: the command line, or what it names
    ├── EnvironmentFault         exit code 2: the machine cannot do what was asked (disk full, no torch, no permission)
    └── RecordError              exit code 2: a run folder that cannot be read
        └── NewerSchemaError     written by a newer Paceline

Every message names the given value, the allowed values and the next command.
"""

from __future__ import annotations


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
