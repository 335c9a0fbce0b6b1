"""Access to NVIDIA's driver through one function, which takes the name and arguments of an NVML function.

The names, numbers and units are those of NVML (docs.nvidia.com/deploy/nvml-api). The binding is imported late: on a
host without a driver it is never imported. The tests use answers written by hand.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

TIMEOUT = 10  # NVML_ERROR_TIMEOUT: no event within the timeout
NO_LIBRARY = 12  # NVML_ERROR_LIBRARY_NOT_FOUND
NO_FUNCTION = 13  # NVML_ERROR_FUNCTION_NOT_FOUND
# Permanent errors: uninitialised, bad argument, not supported, no permission, library or function not found, version
# mismatch, deprecated.
_LASTING = frozenset({1, 2, 3, 4, NO_LIBRARY, NO_FUNCTION, 25, 26})
_LIBRARY = "libnvidia-ml.so.1"


class NvmlFault(Exception):
    """An NVML call failed. If `lasting` is true, the same call will always fail."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.lasting = code in _LASTING


class NvmlLike(Protocol):
    """NVML, or a test double."""

    def call(self, function: str, *arguments: Any) -> Any:
        """Call the NVML function with this name and return its result.

        Raises:
            NvmlFault: The driver refused the call, or does not have the function.
        """


class Nvml:
    """The NVML of this machine, through nvidia-ml-py."""

    def __init__(self) -> None:
        """Load the library and initialise NVML.

        Raises:
            NvmlFault: There is no driver, or it does not start.
        """
        try:
            ctypes.CDLL(_LIBRARY)
        except OSError:
            raise NvmlFault(NO_LIBRARY, f"no NVIDIA driver ({_LIBRARY} not found)") from None
        import pynvml

        self._pynvml: Any = pynvml
        self.call("nvmlInit")

    def call(self, function: str, *arguments: Any) -> Any:
        """Call the NVML function with this name and return its result.

        Raises:
            NvmlFault: The driver refused the call, or does not have the function.
        """
        target = getattr(self._pynvml, function, None)
        if target is None:
            raise NvmlFault(NO_FUNCTION, f"nvidia-ml-py has no {function}")
        try:
            return target(*arguments)
        except self._pynvml.NVMLError as error:
            raise NvmlFault(int(error.value), str(error)) from None
