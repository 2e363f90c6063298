"""The parts that run in C: rounding, with the numbers of Paddle's casts, at the speed of memory; opening and closing regions.

It is optional. ``python -m unamp_paddle`` builds it, which takes two seconds and a C compiler. From then on every process uses
it. The environment can say that it must not (``UNAMP_PADDLE_COMPILED=0``), or that it must (``1``: an error where it is not
built).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unamp.adapter import exchanging
from unamp.adapter.building import CompiledPart, compiler

__all__ = ["build", "build_hint", "exchange", "loops", "place"]

_ROUNDING = CompiledPart(
    "paddle",
    "the compiled rounding",
    "unamp_paddle_rounding.so",
    f"paddle-{platform.system()}-{platform.machine()}",
    [Path(__file__).with_name("rounding.c")],
)
place = _ROUNDING.place
_EXCHANGE = exchanging.part("paddle")


def build() -> tuple[Path, ...]:
    """Build everything with the C compiler that `CC` names, or `cc`, put it in its place, and return the files.

    Raises:
        OSError: there is no compiler, or (with the rounding built) this Python came without its headers.
        subprocess.CalledProcessError: the compiler failed; what it has to say is on the terminal.
    """
    return _ROUNDING.compile(), _EXCHANGE.compile_extension()


def build_hint() -> str | None:
    """Return how to have what is not built and could be; None where all of it is, and where it is not wanted."""
    if _ROUNDING.would_be_used(compiler()[0]):
        slow = "rounds to low dtypes by Paddle's own operations here, which takes several times as long as in C"
    elif _EXCHANGE.can_be_built():
        slow = "opens and closes regions in Python here, which takes twice as long as in C"
    else:
        return None
    return f"unamp {slow}: {_ROUNDING.command} builds that, once, in two seconds"


#: What they are called with: where numbers are read, where they are written, and how many.
_LOOP = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
#: Where numbers are read, where they are written, their size, the number of dimensions, sizes and strides.
_GATHER = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)


def _load() -> Callable[[str], Any] | None:
    path = _ROUNDING.to_load()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise _ROUNDING.damaged(path, error) from error

    def loop(name: str) -> Any:
        function = getattr(library, f"unamp_{name}")
        function.argtypes, function.restype = _GATHER if name == "gather" else _LOOP, None
        return function

    return loop


#: Gives a loop of `rounding.c` by its name. None where the library is not built.
loops = _load()

#: The loops of `unamp.adapter.exchanging` in C; None where they are not built.
exchange: exchanging.Exchange | None = _EXCHANGE.module()
