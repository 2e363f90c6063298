"""Functions and cells: compiled by `mindspore.jit` or in GRAPH_MODE, or exported and loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mindspore
from mindspore import nn

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.policy import Policy
from unamp_mindspore.conformance.ways.opening import (
    NO_KERNEL,
    Holding,
    HoldingCell,
    calling,
    cell_with_decorated_method,
    decorated_cell,
    graph_mode,
    inside,
)
from unamp_mindspore.decorators import stated

#: Compiles a function, or a cell that holds it, and runs it.
Compiles = Callable[[Any, Sequence[Any]], Any]

#: Operations without a kernel, or whose binding in the suite is Python that the compiler rejects.
READS = NO_KERNEL | {
    "layer_norm": (
        "the compiler does not read try statements, with which the suite lends a layer its "
        "parameters"
    ),
    "transformer": "as layer_norm",
    "ranking": "as layer_norm: embedding",
    "residual": (
        "the compiler does not read annotations of variables, and batch_norm's binding has them"
    ),
    "lstm": "as residual",
    "unet": (
        "the compiler has Python run what makes a layer, as conv_transpose2d's binding does, and "
        "knows no dtype of that"
    ),
}
_WITH = {
    "*": (
        "the compiler does not read a with statement that may raise "
        "(\"Unsupported statement 'Try'\")"
    )
}
_CAPTURES = (
    "" if sys.version_info < (3, 12) else "MindSpore captures bytecode on Python 3.11 and before"
)


def ways() -> Iterator[Way]:
    """Yield the ways of compilers and exports."""
    yield from _compiled("jit", _jit)
    yield from _compiled("GRAPH_MODE", _in_graph_mode, cells_only=True, gradients=False)
    for name, policy_is in (("around", _around), ("inside", _in_body), ("decorated", _decorated)):
        run = partial(policy_is, _captured)
        yield Way(
            f"jit bytecode, region {name}", "compiled", run,
            gradients=False, upstream=NO_KERNEL, absent=_CAPTURES,
        )  # fmt: skip
    yield Way(
        "jit trace, region around",
        "compiled",
        partial(_around, _traced),
        refused=_not_traced,
        gradients=False,
    )
    promised: dict[str, Any] = {"equal": "bound", "gradients": False, "upstream": READS}
    run = partial(_around, _exported, cell=Holding)
    yield Way("MINDIR of a cell, loaded", "exported", run, **promised)
    run = partial(_decorated, _exported, cell=decorated_cell)
    yield Way("MINDIR of a decorated cell, loaded", "exported", run, dear=True, **promised)


def _compiled(
    name: str, compiles: Compiles, *, cells_only: bool = False, **promised: Any
) -> Iterator[Way]:
    promised = {"equal": "bound", **promised}
    followed = {**promised, "upstream": READS}
    if not cells_only:
        yield Way(f"{name}, region around", "compiled", partial(_around, compiles), **followed)
        yield Way(
            f"{name} of a decorated function",
            "decorated",
            partial(_decorated, compiles),
            **followed,
        )
        yield Way(
            f"{name}, decorated function in it",
            "decorated",
            partial(_decorated, compiles, deep=True),
            **followed,
        )
        yield Way(
            f"{name}, region inside",
            "compiled",
            partial(_in_body, compiles),
            **promised,
            upstream=_WITH,
        )
    yield Way(
        f"{name} of a cell, region around",
        "compiled",
        partial(_around, compiles, cell=Holding),
        **followed,
    )
    # Compiling takes long, and GRAPH_MODE finds the parts of a cell as mindspore.jit does: only one
    # of the two is always run.
    once = {**followed, "dear": not cells_only}
    yield Way(
        f"{name} of a decorated cell",
        "decorated",
        partial(_decorated, compiles, cell=decorated_cell),
        **once,
    )
    yield Way(
        f"{name}, decorated cell in it",
        "decorated",
        partial(_decorated, compiles, cell=decorated_cell, deep=True),
        **once,
    )
    method = partial(_decorated, compiles, cell=cell_with_decorated_method)
    yield Way(f"{name}, decorated method in it", "decorated", method, **{**followed, "dear": True})


# --- the place of the region ----------------------------------------------------------------------


def _around(
    compiles: Compiles,
    function: Function,
    region: OpenRegion,
    inputs: Sequence[Any],
    *,
    cell: type[nn.Cell] | None = None,
) -> Any:
    with region():
        return compiles(function if cell is None else cell(function), inputs)


def _in_body(
    compiles: Compiles, function: Function, region: OpenRegion, inputs: Sequence[Any]
) -> Any:
    return compiles(inside(function, region), inputs)


def _decorated(
    compiles: Compiles,
    function: Function,
    region: OpenRegion,
    inputs: Sequence[Any],
    *,
    cell: Any = None,
    deep: bool = False,
) -> Any:
    made = region()(function) if cell is None else cell(function, region)
    if deep:
        made = calling(made) if cell is None else HoldingCell(made)
    return compiles(made, inputs)


# --- compilers ------------------------------------------------------------------------------------


def _jit(function: Any, inputs: Sequence[Any]) -> Any:
    return mindspore.jit(function)(*inputs)


def _captured(function: Any, inputs: Sequence[Any]) -> Any:
    return mindspore.jit(function, capture_mode="bytecode")(*inputs)


def _traced(function: Any, inputs: Sequence[Any]) -> Any:
    # Under another name: if the first argument has a method of a function's name, MindSpore calls
    # that instead.
    return mindspore.jit(calling(function), capture_mode="trace")(*inputs)


def _in_graph_mode(cell: Any, inputs: Sequence[Any]) -> Any:
    with graph_mode():
        return cell(*inputs)


def _exported(cell: Any, inputs: Sequence[Any]) -> Any:
    with TemporaryDirectory() as folder:
        file = Path(folder, "net")
        mindspore.export(cell, *inputs, file_name=str(file), file_format="MINDIR")
        loaded = nn.GraphCell(mindspore.load(str(file.with_suffix(".mindir"))))
    return loaded(*inputs)


# --- refusals -------------------------------------------------------------------------------------


def _not_traced(policy: Policy) -> str:
    return "no policy reaches graphs that are captured from a trace" if stated(policy) else ""
