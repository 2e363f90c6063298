"""The number of products of two numbers in an operation, from the shapes of inputs and result.

`COUNTED` has a rule for each canonical name that multiplies more numbers than it reads. All others
(sums, norms, functions of one number) are bound by the bytes that they move, and count no product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isqrt, prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unamp.adapter.records import OpRecord

Sizes = tuple[int, ...]
#: Counts the products of one call, given its inputs' shapes, its result's shape, and the record.
Rule = Callable[[Sequence[Sizes], Sizes, "OpRecord"], int]

#: Frameworks whose convolutions have the result's channels last in their weights. Keras' layers
#: have them last on every framework; all others have them first.
_CHANNELS_LAST = frozenset({"jax", "tensorflow"})
#: The first part of the names of Keras' layers and functions.
_KERAS = "keras."
#: Frameworks whose attention has the sequence before the heads, among the axes of its inputs. In
#: the others it is behind them.
_BEFORE_HEADS = frozenset({"jax", "paddle", "tensorflow"})


def products(record: OpRecord) -> int | None:
    """Return an operation's number of products; None for unknown dimensions or unusual shapes."""
    rule = COUNTED.get(record.op)
    if rule is None:
        return 0
    shapes = (*record.input_shapes, record.output_shape or ())
    if record.output_shape is None or any(size is None for shape in shapes for size in shape):
        return None
    try:
        return rule(
            [_known(shape) for shape in record.input_shapes], _known(record.output_shape), record
        )
    except (LookupError, ValueError, ZeroDivisionError):
        # an empty tensor, or a call that the rule does not understand
        return 0 if any(0 in shape for shape in shapes) else None


def _known(shape: Sequence[int | None]) -> Sizes:
    return tuple(size for size in shape if size is not None)


# --- products of matrices -------------------------------------------------------------------------


def _contracted(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    # rows * inner, inner * columns and rows * columns: their product is a square, in whatever order
    # the axes are.
    return isqrt(prod(inputs[0]) * prod(_weight(inputs)) * prod(out))


def _product(a: Sizes, b: Sizes, out: Sizes) -> int:
    if len(a) < 2 or len(b) < 2:
        return prod(out) * prod(a if len(a) < 2 else b)
    return prod(out[:-2]) * isqrt(prod(a[-2:]) * prod(b[-2:]) * prod(out[-2:]))


def _chain(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    # Multiplied from left to right. The first and the last may be vectors.
    first = inputs[0]
    rows = first[0] if len(first) == 2 else 1
    return sum(rows * prod(each) for each in inputs[1:])


def _einsum(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    """Count the letters of the equation, two operands at a time from left to right."""
    written, _, result = (record.equation or "").replace(" ", "").partition("->")
    operands = [term.replace("...", "") for term in written.split(",")]
    inputs = inputs[: len(operands)]  # a layer also has a bias
    sizes: dict[str, int] = {}
    for term, shape in zip(operands, inputs, strict=True):
        # the axes of an ellipsis are a batch's, at either end of a term or inside it
        before = len(shape) - len(term)
        names = [*(f"...{n - before}" for n in range(before)), *term] if "..." in written else term
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(sizes.get(name, 1), size)
    batch = [name for name in sizes if name.startswith("...")]
    letters = [{*term, *batch} for term in operands]
    count, left = 0, letters[0]
    for n, right in enumerate(letters[1:], 1):
        count += prod(sizes[name] for name in left | right)
        left = (left | right) & set().union(result.replace("...", ""), batch, *letters[n + 1 :])
    return count


# --- convolutions ---------------------------------------------------------------------------------


def _conv(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    weight = _weight(inputs)
    return prod(out) * (prod(weight) // weight[_channels(record)])


def _conv_transpose(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    # The weight of a transposed convolution has the shape of the weight of the convolution that it
    # undoes. A primitive may take it as the first input.
    weight, given = (
        (inputs[0], inputs[1]) if "Backprop" in record.native else (_weight(inputs), inputs[0])
    )
    return prod(given) * (prod(weight) // weight[_channels(record)])


def _depthwise(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    weight = _weight(inputs)
    return prod(out) * prod(weight[:-2] if _channels(record) == -1 else weight[2:])


def _separable(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    depthwise, pointwise = inputs[1:3]
    return prod(out) // pointwise[-1] * (prod(depthwise) + prod(pointwise))


def _channels(record: OpRecord) -> int:
    return -1 if record.framework in _CHANNELS_LAST or record.native.startswith(_KERAS) else 0


def _weight(inputs: Sequence[Sizes]) -> Sizes:
    """Return the shape of the first parameter that is not a bias."""
    for shape in inputs[1:]:
        if len(shape) > 1:
            return shape
    raise LookupError("no weight")


# --- attention and recurrent layers ---------------------------------------------------------------


def _attention(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    query, key = inputs[:2]
    before_heads = record.framework in _BEFORE_HEADS or record.native.startswith(_KERAS)
    axis = -3 if before_heads and len(key) > 3 else -2
    return (prod(query) + prod(out)) * key[axis]


def _attention_layer(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    """Count each weight once per position, and one attention of the sequence to itself."""
    given = inputs[0]
    if record.native.startswith(_KERAS):  # its biases have an axis for the heads, too
        value, (to_query, to_key, to_value, output) = (
            inputs[1],
            [shape for shape in inputs if len(shape) == 3][-4:],
        )
        of_query = (
            prod(to_query) + prod(output) + value[-2] * (prod(to_query[1:]) + prod(output[:2]))
        )
        return _rows(given) * of_query + _rows(value) * (prod(to_key) + prod(to_value))
    weights = [shape for shape in inputs[1:] if len(shape) > 1 and shape[0] != given[0]]
    length = given[0] if record.framework == "mindspore" else given[-2]
    return _rows(given) * (sum(map(prod, weights)) + 2 * length * given[-1])


def _recurrent(inputs: Sequence[Sizes], out: Sizes, record: OpRecord) -> int:
    given, *rest = inputs
    for _ in range(2 if record.op.startswith("lstm") else 1):
        if len(given) == 2 and out in rest:  # a cell's state has the shape of its result
            rest.remove(out)
    return _rows(given) * sum(prod(shape) for shape in rest if len(shape) == 2)


def _rows(shape: Sizes) -> int:
    return prod(shape[:-1])


#: The rule for operations, by their canonical names.
_RULES: Mapping[str, Rule] = {
    "addbmm": lambda inputs, out, record: prod(inputs[-2]) * out[-1],
    "addmm addmm_activation baddbmm bmm matmul mm": lambda inputs, out, record: _product(
        inputs[-2], inputs[-1], out
    ),
    "addmv mv": lambda inputs, out, record: prod(inputs[-2]),
    "addr kron outer": lambda inputs, out, record: prod(out),
    "bilinear": lambda inputs, out, record: prod(out) * inputs[0][-1] * inputs[1][-1],
    "chain_matmul linalg_multi_dot": _chain,
    "conv1d conv2d conv3d convolution": _conv,
    "conv_tbc": lambda inputs, out, record: prod(out) * prod(_weight(inputs)[:-1]),
    "conv_transpose1d conv_transpose2d conv_transpose3d": _conv_transpose,
    "deform_conv2d": lambda inputs, out, record: prod(out) * prod(inputs[2][1:]),
    "depthwise_conv2d": _depthwise,
    "dot linalg_vecdot vdot": lambda inputs, out, record: max(map(prod, inputs)),
    "einsum": _einsum,
    "fused_attention multi_head_attention transformer_decoder_layer transformer_encoder_layer": (
        _attention_layer
    ),
    "fused_feedforward point_cloud_mlp": lambda inputs, out, record: (
        _rows(inputs[0]) * sum(prod(shape) for shape in inputs[1:] if len(shape) == 2)
    ),
    "grouped_mm inner weight_only_linear": lambda inputs, out, record: prod(out) * inputs[0][-1],
    "gru gru_cell lstm lstm_cell rnn rnn_cell": _recurrent,
    "linear matmul_flatten tensordot": _contracted,
    "scaled_dot_product_attention": _attention,
    "scaled_mm": lambda inputs, out, record: _product(inputs[0], inputs[1], out),
    "separable_conv2d": _separable,
}

#: The rule for each operation.
COUNTED: Mapping[str, Rule] = {op: rule for ops, rule in _RULES.items() for op in ops.split()}
