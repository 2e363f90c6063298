"""The operations of Paddle that follow rules: forward functions, operators, functions, layers."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import paddle

from unamp._function_types import Function, Keywords
from unamp.adapter.replacing import CodePatch, MethodsPatch
from unamp.vocabulary import vocabulary
from unamp_paddle.calls import entry
from unamp_paddle.facts import facts
from unamp_paddle.operators import Operator, indexes
from unamp_paddle.spellings import named
from unamp_paddle.state import Tensor, Value

BUILTIN = types.BuiltinFunctionType

#: Returns the operation for the arguments of a call; None where no rule applies.
Which = Callable[[Sequence[Any], Keywords], str | None]

#: Tensor's arithmetic and comparison operators: C++ that calls no forward function. (Those of the
#: values that `to_static` traces are Python.)
ARITHMETIC = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "matmul": "matmul",
}  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

#: Layers that are one operation: the class in `paddle.nn`, and the operation of its `forward`.
_LAYERS = {
    "RNN": "rnn", "BiRNN": "rnn",
    "LSTMCell": "lstm_cell", "GRUCell": "gru_cell", "SimpleRNNCell": "rnn_cell",
    "MultiHeadAttention": "multi_head_attention",
    "TransformerEncoderLayer": "transformer_encoder_layer",
    "TransformerDecoderLayer": "transformer_decoder_layer",
}  # fmt: skip


def _recurrent(mode: str) -> str:
    return "rnn" if mode.startswith("RNN") else mode.lower()


def _convolution(kind: str) -> str:
    return {"depthwise_conv3d": "conv3d"}.get(kind, kind)


def _depthwise(function: types.FunctionType) -> Which:
    import inspect

    bind = inspect.signature(function).bind

    def which(args: Sequence[object], kwargs: Keywords) -> str:
        try:
            given = bind(*args, **kwargs).arguments
            x, weight, groups = given["x"], given["weight"], given.get("groups", 1)
            channels = x.shape[1 if given.get("data_format", "NCHW").startswith("NC") else -1]
        except (TypeError, KeyError, AttributeError):
            return "conv2d"
        return (
            "depthwise_conv2d"
            if 1 < channels == groups and weight.shape[0] % channels == 0
            else "conv2d"
        )

    return which


def _padding(args: Sequence[Any], kwargs: Keywords) -> str:
    mode = kwargs["mode"] if "mode" in kwargs else args[2] if len(args) > 2 else "constant"
    if mode == "circular":
        return "circular_pad"
    kind = {"reflect": "reflection_pad", "replicate": "replication_pad"}.get(mode)
    return f"{kind}{_argument(args, kwargs, 0, 'x').ndim - 2}d" if kind else "pad"


def _indexing(args: Sequence[object], kwargs: Keywords) -> str:
    return "index" if indexes(args) else "slice"


def _embedding(position: int) -> Which:
    # No rule applies with a sparse gradient: Paddle's cast of one reads memory that is not its own.
    def which(args: Sequence[object], kwargs: Keywords) -> str | None:
        sparse = kwargs["sparse"] if "sparse" in kwargs else len(args) > position and args[position]
        return None if sparse else "embedding"

    return which


#: Forward functions that are one of several operations, or none, depending on their arguments.
_WHICH: dict[str, Which] = {
    "embedding": _embedding(3),
    "rnn": lambda args, kwargs: _recurrent(_argument(args, kwargs, 10, "mode")),
}


@cache
def forward() -> dict[str, Operator]:
    """Return the functions of `paddle._C_ops` that follow rules, or may be given low tensors."""
    names = vars(paddle._C_ops)
    spelled = vocabulary().spelled("paddle")
    found = {}
    for name, call in names.items():
        base = name.rstrip("_")
        if (
            not isinstance(call, BUILTIN)
            or not facts().left_alone.isdisjoint((name, base))
            or name.startswith("__")
            or base.startswith(("strings_", "get_core_ops"))
            or base.endswith("_grad")
        ):
            continue
        if base.startswith("sparse_"):
            op = (
                facts().sparse.get(base)
                or spelled.get(base)
                or spelled.get(base.removeprefix("sparse_"))
            )
            reached = op is not None and not vocabulary()[op].keeps_its_meaning
            if reached or base in facts().making_sparse:
                found[name] = Operator(op, f"_C_ops.{name}", call)
            continue
        op = spelled.get(name)
        if op is not None and vocabulary()[op].group == "cast":
            continue
        if op is None and name.endswith("_"):
            if base in spelled and base in names:
                op, view = spelled[base], _is_view(base, spelled[base])
                found[name] = Operator(
                    op, f"_C_ops.{name}", call, in_place=True, view=view, out_of_place=names[base]
                )
            elif name in facts().filling:
                found[name] = Operator(
                    None, f"_C_ops.{name}", call, in_place=True, out_of_place=call
                )
            continue  # the others are optimizers and communication
        found[name] = Operator(
            op, f"_C_ops.{name}", call, view=_is_view(name, op), which=_WHICH.get(name)
        )
    return found


@cache
def legacy() -> dict[str, Operator]:
    """Return the functions of `paddle._legacy_C_ops` that rules are about.

    Some of Paddle's own code computes with them. Functions without a name in the vocabulary are
    left out: many write their results to tensors that they are given as arguments.
    """
    found = {}
    for name, call in vars(paddle._legacy_C_ops).items():
        op = vocabulary().spelled("paddle").get(name)
        if (
            not isinstance(call, BUILTIN)
            or name in facts().left_alone
            or name.endswith(("_", "_grad"))
        ):
            continue
        if name in facts().legacy or (
            op is not None and not _is_view(name, op) and vocabulary()[op].group != "cast"
        ):
            found[name] = Operator(op, f"_legacy_C_ops.{name}", call, which=_WHICH.get(name))
    return found


def _is_view(name: str, op: str | None) -> bool:
    return name in facts().views or (op is not None and vocabulary()[op].keeps_its_meaning)


def _argument(args: Sequence[Any], kwargs: Keywords, position: int, name: str) -> Any:
    return kwargs[name] if name in kwargs else args[position]


@cache
def tensor_operators() -> dict[str, Operator]:
    """Return Tensor's operators, by the names of their methods."""
    found = {}
    for name, op in ARITHMETIC.items():
        for method in (f"__{name}__", f"__r{name}__"):
            if method in vars(Tensor):
                found[method] = Operator(op, f"Tensor.{method}", vars(Tensor)[method])
    for op in COMPARISONS:
        found[f"__{op}__"] = Operator(op, f"Tensor.__{op}__", vars(Tensor)[f"__{op}__"], view=True)
    return found


@cache
def codes() -> dict[Operator, CodePatch]:
    """Return the patches of composites, by the operation.

    Composites are functions and layers of Python code that are one operation of the vocabulary.
    """
    made: dict[Operator, CodePatch] = {}
    taken: set[types.FunctionType] = set()

    def add(function: object, op: str, name: str, **kinds: Any) -> None:
        if not isinstance(function, types.FunctionType) or function in taken:
            return
        taken.add(function)
        operator = Operator(op, name, function, composite=True, **kinds)

        def instead(original: Function) -> Function:
            operator.call = original
            return entry(operator)

        made[operator] = CodePatch(function, instead)

    functional, conv, rnn = paddle.nn.functional, paddle.nn.functional.conv, paddle.nn.layer.rnn
    add(
        conv._conv_nd,
        "conv2d",
        "nn.functional.conv._conv_nd",
        which=lambda a, k: _convolution(_argument(a, k, 10, "op_type")),
    )
    add(functional.conv2d, "conv2d", "nn.functional.conv2d", which=_depthwise(functional.conv2d))
    add(
        rnn.RNNBase.forward,
        "rnn",
        "nn.layer.rnn.RNNBase.forward",
        layer=True,
        which=lambda a, k: _recurrent(a[0].mode),
    )
    for name, op in _LAYERS.items():
        add(getattr(paddle.nn, name).forward, op, f"nn.{name}.forward", layer=True)
    add(functional.embedding, "embedding", "nn.functional.embedding", which=_embedding(5))
    add(functional.pad, "pad", "nn.functional.pad", which=_padding)
    add(Tensor.__getitem__, "index", "Tensor.__getitem__", direct=True, which=_indexing)
    for spelling, op in vocabulary().spelled("paddle").items():
        if vocabulary()[op].group == "cast":
            continue
        add(_python(spelling), op, spelling, view=vocabulary()[op].keeps_its_meaning)
    for method, operator in tensor_operators().items():
        # The values that `to_static` traces: their operators are Python, and the addition of a
        # number runs as `scale`.
        function, spelling = vars(Value).get(method), f"Value.{method}"
        add(function, operator.op, spelling, view=operator.view, direct=True)  # type: ignore[arg-type]
    return made


def _python(spelling: str) -> object:
    value = named(spelling)
    if isinstance(value, types.FunctionType) and value.__code__.co_filename.endswith(
        "generated_tensor_methods_patch.py"
    ):
        return None  # only forwards its arguments to the forward function of that name
    return value


@cache
def _by_function() -> dict[object, CodePatch]:
    return {code.function: code for code in codes().values()}


def unpatched(function: Function) -> Function:
    """Return the original of a function of Paddle's, whether it is patched now or not."""
    code = _by_function().get(getattr(function, "__func__", function))
    return code.original if code is not None and code.applied else function


@cache
def operators() -> tuple[Operator, ...]:
    """Return all operations."""
    return (*forward().values(), *legacy().values(), *tensor_operators().values(), *codes())


@cache
def comparisons() -> MethodsPatch:
    """Return the patch of Tensor's comparison operators."""
    return MethodsPatch(
        Tensor, {n: entry(o) for n, o in tensor_operators().items() if o.op in COMPARISONS}
    )
