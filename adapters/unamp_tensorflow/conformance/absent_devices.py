"""Read the operations that an absent device would run, from graphs.

`tf.function` traces a graph for any device. The graph is read node by node, and never run: a node
has its device, and the dtypes of its inputs and outputs. Grappler's changes to the graph, and the
device's kernels, are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from unamp.adapter.absent_devices import (
    AbsentDevice,
    Computed,
    Kind,
    Numbers,
    Programs,
    entering,
    kind_of,
    result_of,
)
from unamp_tensorflow.listing import op_type

#: The name of a place inside a node's name, after the scope that a tape opens for gradients.
_PLACE = re.compile(r"^(gradient_tape/)?(?:.*?/)?at\.(\d*)\.(\w+)/")

_LOOKS = "its code looks at numbers, which a graph does not have"

#: The reasons for which a function has no graph, by words in TensorFlow's error.
_REASONS = {
    **dict.fromkeys(
        ("OperatorNotAllowedInGraph", "no attribute 'numpy'", "interpreted as an integer"), _LOOKS
    ),
    "Dimension value must be integer": _LOOKS,
    "only supports singleton tf.Variables": "it makes a variable at each call",
    "has no graph of its own": "it calls a function of TensorFlow 1's",
}

#: Nodes whose numbers come from outside of a graph: an argument, and a variable's value.
_GIVEN = frozenset({"Placeholder", "ReadVariableOp"})

#: Gradients that are sums, while the operation whose gradient they are is none.
_SUMS = frozenset({"BiasAddGrad"})


def absent_devices() -> tuple[AbsentDevice, ...]:
    """Return the GPU, where there is none."""
    if tf.config.list_physical_devices("GPU"):
        return ()
    return (AbsentDevice("placed:gpu", _read, _place, reason=_reason, run=_run),)


def _reason(error: Exception) -> str:
    """Return why a function has no graph; empty where TensorFlow refuses the call."""
    return next(
        (why for words, why in _REASONS.items() if words in f"{type(error).__name__}: {error}"), ""
    )


def _place(name: str) -> Any:
    number, _, op = name.rpartition(" ")
    return tf.name_scope(f"at.{number}.{op}/")


def _read(
    function: Callable[..., Any],
    leaves: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    buffers: Sequence[np.ndarray],
) -> Programs:
    def program(device: str) -> list[Computed]:
        with tf.device(device):
            variables = [tf.Variable(array, trainable=False) for array in buffers]

        def whole(leaves: list[tf.Tensor], others: list[tf.Tensor]) -> None:
            with tf.device(device), tf.GradientTape() as tape:
                inputs, data = (
                    [tf.identity(leaf) for leaf in leaves],
                    [tf.identity(other) for other in others],
                )
                tape.watch(inputs)
                result = function(inputs, data, variables)
            if inputs:
                with tf.device(device):
                    tape.gradient(result, inputs)

        given = [
            [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
            for arrays in (leaves, others)
        ]
        return operations(tf.function(whole, autograph=False).get_concrete_function(*given).graph)

    return Programs(program("/device:GPU:0"), program("/device:CPU:0"))


def _run(
    function: Callable[..., Any],
    leaves: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    buffers: Sequence[np.ndarray],
) -> None:
    """Run a function eagerly: traces do not see a graph as it is written."""
    function(
        [tf.constant(array) for array in leaves],
        [tf.constant(array) for array in others],
        [tf.Variable(array, trainable=False) for array in buffers],
    )


_Values = dict[Any, Numbers]


def operations(graph: tf.Graph) -> list[Computed]:
    """Return the operations of a graph in which precision shows, with those of called functions."""
    return list(_inside(graph, {}, {}, ("", False)))


def _inside(
    graph: Any, functions: dict[str, Any], values: _Values, around: tuple[str, bool]
) -> Iterator[Computed]:
    functions = functions | graph._functions
    for node in graph.get_operations():
        place, backward = _where(node.name, around)
        taken = [(values.get(tensor.ref()), _dtypes([tensor]), place) for tensor in node.inputs]
        entered = [entering(*each) for each in taken]
        for each in () if backward else taken:
            yield from result_of(*each)
        made = frozenset().union(*entered)
        if computed := _computed(node):
            kind, operands, results = computed
            yield Computed(place, backward, node.type, kind, operands, results, tuple(sorted(made)))
        for name in _called(node):
            yield from _body(_graph(functions[name]), entered, functions, values, (place, backward))
        for tensor in () if node.type in _GIVEN else node.outputs:
            dtypes = _dtypes([tensor])
            narrowed = node.type == "Cast" and _narrows(_dtypes(node.inputs), dtypes)
            if narrowed:
                yield Computed(
                    place, backward, node.type, "elementwise", dtypes, dtypes, tuple(sorted(made))
                )
            values[tensor.ref()] = Numbers(place, backward, frozenset(dtypes) if narrowed else made)


def _graph(function: Any) -> tf.Graph:
    if not hasattr(function, "graph"):
        raise TypeError(
            f"{function.name} has no graph of its own, as functions of tf.function and of control "
            "flow have"
        )
    return function.graph


def _body(
    graph: Any,
    entered: list[frozenset[str]],
    functions: dict[str, Any],
    values: _Values,
    around: tuple[str, bool],
) -> Iterator[Computed]:
    """Yield the operations of a function that a node calls.

    The function's arguments are the node's last operands: a branch does not get the condition.
    """
    for argument, dtypes in zip(
        graph.inputs, entered[len(entered) - len(graph.inputs) :], strict=True
    ):
        values[argument.ref()] = Numbers(*around, dtypes)
    yield from _inside(graph, functions, values, around)


def _called(node: tf.Operation) -> Iterator[str]:
    """Yield the names of the functions that a node calls."""
    for attr in node.op_def.attr:
        if attr.type == "func":
            yield node.get_attr(attr.name).name
        elif attr.type == "list(func)":
            yield from (function.name for function in node.get_attr(attr.name))


def _computed(node: tf.Operation) -> tuple[Kind, tuple[str, ...], tuple[str, ...]] | None:
    """Return the kind of a node and the dtypes of its inputs and outputs.

    None where it moves numbers, or has no floating inputs. Statistics and parameters with a dtype
    attribute of their own are left out.
    """
    found = op_type(node.type)
    kind: Kind | None = None if found is None or found.op is None else kind_of(found.op)
    if found is None or kind is None:
        return None
    operands = _dtypes(
        tensor
        for tensor in node.inputs
        if found.attr is None or tensor.dtype == node.get_attr(found.attr)
    )
    return (
        ("reduction" if node.type in _SUMS else kind, operands, _dtypes(node.outputs[:1]))
        if operands
        else None
    )


def _narrows(given: tuple[str, ...], made: tuple[str, ...]) -> bool:
    return bool(made) and made != given and made[0] not in ("float32", "float64")


def _where(name: str, around: tuple[str, bool]) -> tuple[str, bool]:
    found = _PLACE.search(name)
    return (f"{found[2]} {found[3]}".strip(), found[1] is not None) if found else around


def _dtypes(tensors: Any) -> tuple[str, ...]:
    """Return the floating dtypes among tensors, each once."""
    return tuple(dict.fromkeys(tensor.dtype.name for tensor in tensors if tensor.dtype.is_floating))
