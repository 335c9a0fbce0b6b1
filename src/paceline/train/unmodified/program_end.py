"""The end of the program on a rank: its variables are freed and its open files are written, as in one process.

Python frees the variables of the program when it ends. This closes files that the program has left open, and calls the
`__del__` methods of its objects. Python does not free them if an object that lives until the process ends, such as a
patched class of torch or a table of classes in FSDP2, refers to the program. So `prepare` frees what is left, at the
last moment at which all libraries still work.
"""

from __future__ import annotations

import gc
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from paceline.train.ranks.open_files import write_files
from paceline.train.unmodified.state import is_own_file

_NAME = "_paceline_program_end"
_CODE = (types.FunctionType, types.ModuleType, type)


def prepare(exit_code: int) -> None:
    """Arrange that what Python has not freed is freed at the end of this process; to be called by an exit handler.

    Python removes all modules, in the order of `sys.modules`, then frees their variables. The last module is one of
    this function, and its removal calls `_AtEnd.__del__`.

    Args:
        exit_code: The exit code of the process, if it is not 0; an exit handler cannot raise `SystemExit`.
    """
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    names = {name for name, file in files.items() if isinstance(file, str) and is_own_file(file)}
    module = types.ModuleType(_NAME)
    vars(module)["at_end"] = _AtEnd(frozenset({"__main__", *names}), exit_code)
    sys.modules[_NAME] = module


class _AtEnd:
    """An object whose deletion ends the program on this rank.

    Args:
        names: The names of the modules of the program.
        exit_code: The exit code of the process, if it is not 0.
    """

    def __init__(self, names: frozenset[str], exit_code: int) -> None:
        self._names, self._exit_code, self._pid = names, exit_code, os.getpid()
        self._actions = (os.getpid, _free, write_files, os._exit)  # variables of modules may be gone

    def __del__(self) -> None:
        getpid, free, write, leave = self._actions
        if getpid() != self._pid:
            return
        free(self._names)
        write()
        if self._exit_code:
            leave(self._exit_code)


def _free(
    names: frozenset[str], objects: Any = gc.get_objects, collect: Callable[[], int] = gc.collect, code: Any = _CODE
) -> None:
    """Delete the variables of modules that Python does not free: first data, then functions, classes and modules."""
    collect()
    left = [each for each in objects() if type(each) is dict and "__builtins__" in each]
    left = [each for each in left if isinstance(each.get("__name__"), str) and each["__name__"] in names]
    for last in (False, True) if left else ():
        for variables in left:
            for name in [name for name, value in variables.items() if last or not issubclass(type(value), code)]:
                if not name.startswith("__"):
                    variables.pop(name, None)
        collect()
