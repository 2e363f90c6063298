"""Comparing memory on the CPU, byte by byte, at the speed of the C library."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


def _memcmp() -> Callable[[int, int, int], int]:
    # `PyDLL` keeps the GIL: most calls are shorter than giving it up and getting it back.
    function = ctypes.PyDLL("msvcrt" if sys.platform == "win32" else None).memcmp
    function.argtypes, function.restype = (
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
        ctypes.c_int,
    )
    return function


#: Takes two addresses and a number of bytes, and returns 0 where the bytes are equal. Nothing is
#: checked: both must be memory of the CPU.
bytes_differ = _memcmp()
