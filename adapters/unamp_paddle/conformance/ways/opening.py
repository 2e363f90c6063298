"""The place of a way's region: inside the function that the way runs, or around the whole call."""

from __future__ import annotations

import gc
import linecache
import sys
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

import paddle

from unamp._function_types import Function
from unamp.adapter import OpenRegion, plain_ways

_numbers = count()


def written(source: str, like: Function, **names: Any) -> Function:
    """Return a function with source, which Paddle's compilers read, and with another's arguments.

    Args:
        source: its definition, in which ``{arguments}`` stands for the arguments' names.
        like: the function whose arguments it takes.
        names: its globals.
    """
    arguments = like.__code__.co_varnames[: like.__code__.co_argcount]
    number = next(_numbers)
    # A docstring of its own: SOT keeps translations by the code, and takes equal code for the same.
    text = source.format(arguments=", ".join(arguments)).replace(
        "):\n", f'):\n    """Way {number}."""\n', 1
    )
    file = f"<way {number}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    space = {"__name__": __name__, **names}
    exec(compile(text, file, "exec"), space)
    made: Function = space["made"]
    return made


def inside(function: Function, region: OpenRegion) -> Function:
    """Return a function that opens the region and calls another one in it."""
    source = "def made({arguments}):\n    with region():\n        return function({arguments})\n"
    return written(source, function, function=function, region=region)


def made_before(function: Function, region: OpenRegion) -> Function:
    """Return a function like `inside`, which opens a region that is made already."""
    made = region()
    return inside(function, lambda: made)


#: `unamp.adapter.plain_ways.both`, with a function that Paddle's compilers can read.
both = partial(plain_ways.both, opens=inside)


def holding(function: Function) -> Any:
    """Return a layer without parameters whose forward calls a function."""
    source = "def made(self, {arguments}):\n    return self.function({arguments})\n"
    own = {"forward": written(source, function), "function": staticmethod(function)}
    return type("Holding", (paddle.nn.Layer,), own)()


def called(compiled: Function, inputs: Sequence[Any]) -> Any:
    """Return the result of a function that Paddle compiles at its first call.

    No value of its program is left behind. Paddle keeps values of a backward program, which point
    into the program, in a list that only the garbage collector frees. If that happens after the
    program is gone, a later program gets such a value as its own, and the process dies.

    Args:
        compiled: the function that `paddle.jit.to_static` returned.
        inputs: its inputs.
    """
    try:
        # Paddle records the stack with each operation of a program: only these few frames of it,
        # since the suite's stack is deep.
        with patch.object(sys, "tracebacklimit", 4, create=True):
            return compiled(*inputs)
    finally:
        gc.collect()  # while the program is alive
        # SOT collects garbage for each function: those collections need not look at what is left.
        gc.freeze()
