"""Networks and operations as plain functions: straight-line Python with source.

Any compiler of a framework can read them. A network's calls are recorded once, with names in place
of tensors, and written down:

    def mlp(x, w1, b1, w2, b2, w3, b3):
        v1 = op_linear(x, w1, b1)
        v2 = op_relu(v1)
        ...

The operations are globals of the function; its module and its source are where Python looks for
them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from unamp.adapter import Operations
from unamp_conformance.check.cases import Case, cases
from unamp_conformance.check.netruns import LOSS_SCALE
from unamp_conformance.check.networks import NETWORKS, Lacking, Network

__all__ = ["OPERATIONS", "Program", "function", "program"]

#: The operations that every way runs, of every kind of rule: low, float32, the widest, untouched,
#: banned.
OPERATIONS = (
    *("linear", "matmul", "conv2d", "einsum", "add", "mul", "cat"),
    *("softmax", "layer_norm", "exp", "sum", "mse_loss", "relu", "binary_cross_entropy"),
)

_RESULTS = {"lstm": 3}  # the number of results of operations that return several


@dataclass(frozen=True)
class Program:
    """A network or an operation as a plain function.

    Attributes:
        name: its name, and that of the function.
        source: the function's text.
        ops: the operations that it calls.
        arguments: the names of its arguments.
        scalar: whether it returns a scalar to be differentiated as it is.
    """

    name: str
    source: str
    ops: tuple[str, ...]
    arguments: tuple[str, ...]
    scalar: bool = False

    @property
    def network(self) -> Network | None:
        """Return the network; None for an operation."""
        return NETWORKS.get(self.name)

    @property
    def case(self) -> Case:
        """Return the operation's example call."""
        return cases()[self.name]

    def inputs(self) -> list[np.ndarray]:
        """Return the arguments as arrays, floating ones in float32, the same on every call."""
        network = self.network
        if network is None:
            return self.case.inputs(0)
        given = {**network.parameters(), **network.statistics(), **network.inputs()}
        return [given[name] for name in self.arguments]

    def differentiable(self) -> tuple[int, ...]:
        """Return the places of the arguments whose gradients are looked at."""
        network = self.network
        if network is None:
            return tuple(self.case.differentiable(self.inputs())) if self.case.backward else ()
        return tuple(place for place, name in enumerate(self.arguments) if name in network.shapes)

    def buffers(self) -> tuple[int, ...]:
        """Return the places of running statistics."""
        network = self.network
        return tuple(
            place
            for place, name in enumerate(self.arguments)
            if network and name in network.buffers
        )


class _Value(str):
    """A tensor's name in the place of a tensor."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Recorder:
    """Operations that write down their calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ops: dict[str, None] = {}
        self._made = 0

    def __getattr__(self, op: str) -> Callable[..., Any]:
        def note(*args: Any, **kw: Any) -> Any:
            made = tuple(self._name() for _ in range(_RESULTS.get(op, 1)))
            given = ", ".join(
                [*map(repr, args), *(f"{name}={value!r}" for name, value in kw.items())]
            )
            self.lines.append(f"    {', '.join(made)} = op_{op}({given})")
            self.ops[op] = None
            return made if len(made) > 1 else made[0]

        return note

    def _name(self) -> _Value:
        self._made += 1
        return _Value(f"v{self._made}")


@cache
def program(name: str, *, scalar: bool = False) -> Program:
    """Return the program of a network or an operation.

    Args:
        name: one of `NETWORKS`, or of the operations that have an example call with one result.
        scalar: return the network's loss, scaled, or the sum of squares of the operation's result,
            in place of the result.
    """
    note = _Recorder()
    if name in NETWORKS:
        arguments, result = _network(note, NETWORKS[name], scalar)
    else:
        arguments, result = _operation(note, name, scalar)
    body = "\n".join([*note.lines, f"    return {result}"])
    used = tuple(n for n in arguments if any(n in _words(line) for line in note.lines))
    return Program(name, f"def {name}({', '.join(used)}):\n{body}\n", tuple(note.ops), used, scalar)


def _network(note: Any, network: Network, scalar: bool) -> tuple[Sequence[str], Any]:
    parts = {**network.shapes, **network.buffers}, network.inputs()
    parameters, data = ({name: _Value(name) for name in part} for part in parts)
    result = network.forward(note, parameters, data)
    if scalar:
        result = note.mul(network.loss(note, result, data), LOSS_SCALE)
    return [*parameters, *data], result


def _operation(note: Any, op: str, scalar: bool) -> tuple[Sequence[str], Any]:
    case = cases()[op]
    arguments = [_Value(f"x{place}") for place in range(len(case.inputs(0)))]
    result = case.call(getattr(note, op), arguments)
    return arguments, note.sum(note.mul(result, result)) if scalar else result


def _words(line: str) -> set[str]:
    return set("".join(c if c.isidentifier() or c.isdigit() else " " for c in line).split())


@lru_cache(maxsize=256)
def function(wanted: Program, operations: Operations) -> Callable[..., Any]:
    """Return a program as a function of a framework.

    Raises:
        Lacking: for an operation that the framework does not have; the message names it.
    """
    # Compilers look a function's source up by its file, and its globals by its module.
    number = next(_numbers)
    file = Path(_folder().name) / f"{wanted.name}_{number}.py"
    file.write_text(wanted.source, "utf-8")
    module = sys.modules[f"unamp_conformance_program_{number}"] = ModuleType(
        f"unamp_conformance_program_{number}"
    )
    vars(module).update({f"op_{op}": _operation_of(operations, op) for op in wanted.ops})
    exec(compile(wanted.source, str(file), "exec"), vars(module))
    made: FunctionType = vars(module)[wanted.name]
    return made


_numbers = count()


@cache
def _folder() -> TemporaryDirectory[str]:
    """Return the folder of the functions' files, which is gone when the process ends."""
    return TemporaryDirectory(prefix="unamp-conformance-")


def _operation_of(operations: Operations, op: str) -> Callable[..., Any]:
    try:
        return operations[op]
    except KeyError as error:
        raise Lacking(op) from error
