"""When was a file or a folder made? By Linux's statx, which Python lacks; None where the file system does not say."""

from __future__ import annotations

import ctypes
import os
import struct

_AT_FDCWD, _NOFOLLOW, _BTIME = -100, 0x100, 0x800
_SIZE, _MASK, _BORN = 256, "I", "qI"
_BORN_AT = 80  # bytes into struct statx (man 2 statx)
_statx = getattr(ctypes.CDLL(None), "statx", None)


def born_s(path: str) -> float | None:
    """Return the time at which a path was made, in seconds since 1970; of a link that of the link."""
    if _statx is None:
        return None
    found = ctypes.create_string_buffer(_SIZE)
    if _statx(_AT_FDCWD, os.fsencode(path), _NOFOLLOW, _BTIME, found):
        return None
    if not struct.unpack_from(_MASK, found)[0] & _BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from(_BORN, found, _BORN_AT)
    return float(seconds) + float(nanoseconds) * 1e-9
