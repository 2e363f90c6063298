"""Devices that are absent: JAX lowers a function for any platform, and the program is read.

A program is StableHLO, in which every value has its dtype. A compiler for a device may fuse and
reorder operations, and computes them in the dtypes that the program states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export
from jax._src import config

from unamp.adapter.absent_devices import (
    AbsentDevice,
    Computed,
    Kind,
    Numbers,
    Programs,
    entering,
    result_of,
)
from unamp_jax.conformance.layers import Statistic

_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}

#: The floating dtype in a type: of ``tensor<4x8xbf16>`` and of ``tensor<f32>``.
_ELEMENT = re.compile(r"[<x](f16|bf16|f32|f64)>")

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("dot", "dot_general", "convolution"), "product"),
    **dict.fromkeys(("reduce", "reduce_window", "select_and_scatter"), "reduction"),
    **dict.fromkeys(
        ("atan2", "cbrt", "cosine", "exponential", "exponential_minus_one", "log"), "transcendental"
    ),
    **dict.fromkeys(
        ("log_plus_one", "logistic", "power", "rsqrt", "sine", "sqrt", "tan", "tanh"),
        "transcendental",
    ),
    # Libraries of linear algebra and of Fourier transforms have no low dtype.
    **dict.fromkeys(("cholesky", "custom_call", "fft", "triangular_solve"), "reduction"),
    **dict.fromkeys(
        ("add", "ceil", "clamp", "compare", "divide", "floor", "is_finite", "maximum"),
        "elementwise",
    ),
    **dict.fromkeys(
        ("minimum", "multiply", "remainder", "round_nearest_afz", "round_nearest_even"),
        "elementwise",
    ),
    **dict.fromkeys(("scatter", "sort", "subtract"), "elementwise"),
}

#: CHLO has functions that are rewritten in other operations later: transcendental ones, these plain
#: ones, and those that move numbers.
_PLAIN = frozenset({"square", "is_inf", "is_neg_inf", "is_pos_inf", "next_after"})
_MOVING = frozenset({"top_k", "conj", "constant", "constant_like"})

#: The name of a place in the name stack, which is in the location of each operation, with the
#: transformations around it.
_PLACE = re.compile(r"(transpose\()?(?:\w+\()*@([^@/()]+)@")


def absent_devices() -> tuple[AbsentDevice, ...]:
    """Return the platforms that JAX lowers for, without the one that it computes on."""
    platforms = [
        name for name in ("cuda", "rocm", "tpu") if name != export.default_export_platform()
    ]
    return tuple(
        # decisions are made while JAX traces: for them alone no program need be written down
        AbsentDevice(f"lowered:{name}", partial(_read, name), _place, reason=_reason, run=_traced)
        for name in platforms
    )


def _reason(error: Exception) -> str:
    """Return why JAX cannot lower a function; empty where it refuses the call."""
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return "what it gives depends on numbers"
    if isinstance(error, NotImplementedError) and "MLIR translation rule" in str(error):
        return "there is no lowering of it for the platform"
    return "it calls back to the host" if "callback" in str(error) else ""


def _place(name: str) -> Any:
    return jax.named_scope(f"@{name}@")


def _traced(
    function: Callable[..., Any],
    leaves: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    buffers: Sequence[np.ndarray],
) -> Any:
    """Return a function as JAX traces it, with its gradients where there are leaves."""

    def whole(leaves: Any, others: Any, buffers: Any) -> Any:
        result = function(leaves, others, [Statistic(buffer) for buffer in buffers])
        return (
            [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
            if not leaves
            else result
        )

    with config.enable_x64(True):
        return jax.jit(jax.value_and_grad(whole) if leaves else whole).trace(
            list(leaves), list(others), list(buffers)
        )


def _read(platform: str, function: Callable[..., Any], *given: Sequence[np.ndarray]) -> Programs:
    with config.enable_x64(True):
        traced = _traced(function, *given)
        there = operations(traced.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo"))
        try:
            cpu = traced.lower(lowering_platforms=("cpu",))
        except (NotImplementedError, ValueError):
            # the CPU lacks products of float16 that are added up in float32
            return Programs(there, None)
        return Programs(there, operations(cpu.compiler_ir("stablehlo")))


_Values = dict[Any, Numbers]


class _Block(NamedTuple):
    """The arguments and the operations of a block."""

    arguments: tuple[Any, ...]
    operations: tuple[_Operation, ...]


class _Operation(NamedTuple):
    """An operation as MLIR has it, read once: a function is looked at in each of its calls.

    Attributes:
        name: its name, with the dialect.
        place: the place in its location, and whether it is in the backward pass there; None where
            it has no place of its own.
        operands, results: the values with their floating dtypes.
        callee: the function that it calls; empty where it calls none.
        blocks: the blocks of its regions.
    """

    name: str
    place: tuple[str, bool] | None
    operands: tuple[tuple[Any, tuple[str, ...]], ...]
    results: tuple[tuple[Any, tuple[str, ...]], ...]
    callee: str
    blocks: tuple[_Block, ...]


def operations(module: Any) -> list[Computed]:
    """Return the operations of an MLIR module that show a precision.

    A function's operations are returned for each of its calls.
    """
    functions = {op.attributes["sym_name"].value: _blocks(op.operation) for op in module.body}
    return list(_inside(functions["main"], functions, {}, ("", False)))


def _blocks(operation: Any) -> tuple[_Block, ...]:
    return tuple(
        _Block(tuple(block.arguments), tuple(_as_read(each.operation) for each in block))
        for region in operation.regions
        for block in region
    )


def _as_read(operation: Any) -> _Operation:
    name = operation.name
    return _Operation(
        name,
        _where(str(operation.location)),
        tuple((value, _dtypes(str(value.type))) for value in operation.operands),
        tuple((value, _dtypes(str(value.type))) for value in operation.results),
        operation.attributes["callee"].value if name == "func.call" else "",
        _blocks(operation),
    )


def _inside(
    blocks: Iterable[_Block],
    functions: dict[str, tuple[_Block, ...]],
    values: _Values,
    around: tuple[str, bool],
) -> Iterator[Computed]:
    for inner in (operation for block in blocks for operation in block.operations):
        place, backward = inner.place or around
        taken = [(values.get(value), dtypes, place) for value, dtypes in inner.operands]
        entered = [entering(*each) for each in taken]
        for each in () if backward else taken:
            yield from result_of(*each)
        kind, operands, results = _kind(inner.name), _each(inner.operands), _each(inner.results)
        if kind and operands:
            carried = tuple(sorted(frozenset().union(*entered)))
            name = inner.name.partition(".")[2]
            yield Computed(place, backward, name, kind, operands, results, carried)
        elif not kind:  # the body of a reduction, which combines two numbers, belongs to it
            called = functions[inner.callee] if inner.callee else inner.blocks
            yield from _body(called, entered, functions, values, (place, backward))
        made = frozenset().union(*entered)
        for value, dtypes in inner.results:
            narrowed = inner.name == "stablehlo.convert" and _narrows(operands, dtypes)
            if narrowed:
                yield Computed(
                    place, backward, "convert", "elementwise", dtypes, dtypes, tuple(sorted(made))
                )
            values[value] = Numbers(place, backward, frozenset(dtypes) if narrowed else made)


def _body(
    blocks: Sequence[_Block],
    entered: list[frozenset[str]],
    functions: dict[str, tuple[_Block, ...]],
    values: _Values,
    around: tuple[str, bool],
) -> Iterator[Computed]:
    """Yield the operations in the body of a function, a loop or a branch.

    The body's arguments are the operands.
    """
    for block in blocks:
        for argument, dtypes in zip(block.arguments, entered, strict=False):
            values[argument] = Numbers(*around, dtypes)
    yield from _inside(blocks, functions, values, around)


def _narrows(given: tuple[str, ...], made: tuple[str, ...]) -> bool:
    return bool(made) and made != given and made[0] not in ("float32", "float64")


@lru_cache(maxsize=4096)  # many operations of a program have the same location
def _where(location: str) -> tuple[str, bool] | None:
    found = _PLACE.search(location)
    return (found[2], found[1] is not None) if found else None


@cache
def _kind(name: str) -> Kind | None:
    dialect, _, operation = name.partition(".")
    if operation == "ragged_dot":
        return "product"
    if dialect == "chlo" and operation not in _MOVING:
        return (
            "elementwise"
            if operation in _PLAIN or operation.startswith("broadcast_")
            else "transcendental"
        )
    return _KINDS.get(operation) if dialect == "stablehlo" else None


@lru_cache(maxsize=4096)
def _dtypes(type_: str) -> tuple[str, ...]:
    """Return the floating dtype of a type, if it has one."""
    element = _ELEMENT.search(type_)
    return (_DTYPES[element[1]],) if element else ()


def _each(values: Iterable[tuple[Any, tuple[str, ...]]]) -> tuple[str, ...]:
    """Return the floating dtypes among values, each once."""
    return tuple(dict.fromkeys(dtype for _, dtypes in values for dtype in dtypes))
