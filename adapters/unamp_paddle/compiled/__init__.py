"""Rounding in C: the same numbers as Paddle's casts give, at the speed of memory.

It is optional. ``python -m unamp_paddle`` builds it, which takes a second and a C compiler. From then on every process uses it.
The environment can say that it must not (``UNAMP_PADDLE_COMPILED=0``), or that it must (``1``: an error where it is not built).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unamp.errors import FrameworkNotSupported

__all__ = ["build", "build_hint", "loops", "place"]

_SOURCE = Path(__file__).with_name("rounding.c")


def place() -> Path:
    """Return where the library is, or would be: in the user's cache, under what it is made from."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    made_from = f"paddle-{platform.system()}-{platform.machine()}-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}"
    return Path(cache) / "unamp" / made_from / "unamp_paddle_rounding.so"


def build() -> Path:
    """Build the library with the C compiler that `CC` names, or `cc`, and put it in its place.

    Raises:
        OSError: there is no compiler.
        subprocess.CalledProcessError: it failed; what it has to say is on the terminal.
    """
    target = place()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        compiler = shlex.split(os.environ.get("CC", "cc"))
        subprocess.run([*compiler, "-O3", "-shared", "-fPIC", str(_SOURCE), "-o", str(built)], check=True)
        os.replace(built, target)
    return target


def build_hint() -> str | None:
    """Return how to have the library, where it is not built and could be; None where it is, and where it is not wanted."""
    if loops is not None or os.environ.get("UNAMP_PADDLE_COMPILED") == "0":
        return None
    if shutil.which(shlex.split(os.environ.get("CC", "cc"))[0]) is None:
        return None
    return (
        "unamp rounds to low dtypes by Paddle's own operations here, which takes several times as long as in C: "
        "python -m unamp_paddle builds that, once, in a second"
    )


def _load() -> Callable[[str], Any] | None:
    wanted = os.environ.get("UNAMP_PADDLE_COMPILED")
    path = place()
    if wanted == "1" and not path.exists():
        raise FrameworkNotSupported(
            f"UNAMP_PADDLE_COMPILED=1, but the compiled rounding is not built ({path} does not exist); "
            "run: python -m unamp_paddle"
        )
    if wanted == "0" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"the compiled rounding cannot be loaded: {error}; run python -m unamp_paddle again, or delete {path}"
        ) from error

    def loop(name: str) -> Any:
        function = getattr(library, f"unamp_{name}")
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), None
        return function

    return loop


#: Gives a loop of `rounding.c` by its name: called with where numbers are read, where they are written, and how many. None
#: where the library is not built.
loops = _load()
