"""How is NVIDIA's driver asked? Through one narrow seam: a function's name and its arguments.

The names, numbers and units are those of NVML (docs.nvidia.com/deploy/nvml-api). The library is loaded late: where
there is no driver, not even the binding is imported. No GPU has been seen by the authors of this file: it is
written to the documentation, and tested against answers written by hand.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

TIMEOUT = 10  # NVML_ERROR_TIMEOUT: no event within the time given
NO_LIBRARY = 12  # NVML_ERROR_LIBRARY_NOT_FOUND
NO_FUNCTION = 13  # NVML_ERROR_FUNCTION_NOT_FOUND
# Errors that asking again does not cure: uninitialised, bad argument, not supported, no permission, library or
# function not found, version mismatch, deprecated.
_LASTING = frozenset({1, 2, 3, 4, NO_LIBRARY, NO_FUNCTION, 25, 26})
_LIBRARY = "libnvidia-ml.so.1"


class NvmlFault(Exception):
    """The driver did not answer. `lasting`: asking again is useless."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.lasting = code in _LASTING


class NvmlLike(Protocol):
    """NVML, or what stands in for it."""

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what the function of this name returns.

        Raises:
            NvmlFault: the driver refused, or does not have the function.
        """


class Nvml:
    """The driver of this machine, through nvidia-ml-py."""

    def __init__(self) -> None:
        """Load the library and begin.

        Raises:
            NvmlFault: there is no driver, or it does not start.
        """
        try:
            ctypes.CDLL(_LIBRARY)
        except OSError:
            raise NvmlFault(NO_LIBRARY, f"no NVIDIA driver ({_LIBRARY} not found)") from None
        import pynvml

        self._pynvml: Any = pynvml
        self.call("nvmlInit")

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what the function of this name returns.

        Raises:
            NvmlFault: the driver refused, or does not have the function.
        """
        target = getattr(self._pynvml, function, None)
        if target is None:
            raise NvmlFault(NO_FUNCTION, f"nvidia-ml-py has no {function}")
        try:
            return target(*arguments)
        except self._pynvml.NVMLError as error:
            raise NvmlFault(int(error.value), str(error)) from None
