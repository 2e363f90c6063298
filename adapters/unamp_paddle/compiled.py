"""The part that runs in C: opening and closing the outermost region, which exchanges hundreds of functions.

It is optional. A wheel for a platform brings it; ``python -m unamp_paddle`` builds it for this Python, which takes a second
and a C compiler. From then on every process uses it. The environment can say that it must not
(``UNAMP_PADDLE_COMPILED=0``), or that it must (``1``: an error where it is not built).
"""

from __future__ import annotations

from pathlib import Path

from unamp.adapter import exchanging

__all__ = ["build", "build_hint", "exchange"]

_EXCHANGE = exchanging.part("paddle")


def build() -> Path:
    """Build the loops with the C compiler that `CC` names, or `cc`, put it in its place, and return the file.

    Raises:
        OSError: there is no compiler, or this Python came without its headers.
        subprocess.CalledProcessError: the compiler failed; what it has to say is on the terminal.
    """
    return _EXCHANGE.compile_extension()


def build_hint() -> str | None:
    """Return the command that builds it, where it is not built and could be; None where it is, and where it is not wanted."""
    if not _EXCHANGE.can_be_built():
        return None
    return (
        "unamp opens and closes regions in Python here, which takes twice as long as in C: "
        f"{_EXCHANGE.command} builds that, once, in a second"
    )


#: The loops of `unamp.adapter.exchanging` in C; None where they are not built.
exchange: exchanging.Exchange | None = _EXCHANGE.module()
