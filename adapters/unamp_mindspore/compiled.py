"""The part that runs in C: opening and closing the outermost region, which exchanges over a thousand functions and methods.

It is optional. A wheel for a platform brings it; ``python -m unamp_mindspore`` builds it for this Python, which takes a second
and a C compiler. From then on every process uses it. The environment can say that it must not
(``UNAMP_MINDSPORE_COMPILED=0``), or that it must (``1``: an error where it is not built).
"""

from __future__ import annotations

from functools import partial

from unamp.adapter import exchanging

__all__ = ["build", "build_hint", "exchange"]

_EXCHANGE = exchanging.part("mindspore")

#: Builds the loops; see `unamp.adapter.building.CompiledPart`.
build = _EXCHANGE.compile_extension

#: Says how they are built, where they could be.
build_hint = partial(exchanging.build_hint, _EXCHANGE, "three times")

#: The loops of `unamp.adapter.exchanging` in C; None where they are not built.
exchange: exchanging.Exchange | None = _EXCHANGE.module()
