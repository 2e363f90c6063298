"""The arguments of calls in canonical signatures, kept for `unamp.trace(keep=...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from unamp._function_types import Keywords
from unamp.adapter.kept_calls import Arguments, Kept, one_number
from unamp.adapter.open_traces import traces
from unamp.adapter.shadowing import LeftOut
from unamp_torch.listing import Operator
from unamp_torch.numbers import flat, has_numbers

if TYPE_CHECKING:
    import numpy as np

#: Operators whose arguments stand in another order than those of PyTorch's function.
_ORDER = {
    "batch_norm": (
        "input",
        "running_mean",
        "running_var",
        "weight",
        "bias",
        "training",
        "momentum",
        "eps",
    ),
    "embedding": ("indices", "weight", "padding_idx"),
}
#: Operators that take a list of tensors where PyTorch's function takes each as an argument.
_ONE_BY_ONE = frozenset(
    {"block_diag", "broadcast_tensors", "cartesian_prod", "chain_matmul", "einsum"}
)
#: Attributes that are one number for every dimension, or several.
_BY_DIMENSION = frozenset({"dilation", "kernel_size", "output_padding", "padding", "stride"})
#: The words of PyTorch's functions for the numbers of its operators.
_REDUCTIONS = ("none", "mean", "sum")
#: Attributes that the canonical signature has by keyword, also where they must be given.
_BY_KEYWORD = frozenset({"dim", "dims", "training", "momentum", "reduction"})


def before(operator: Operator, args: Sequence[object], kwargs: Keywords) -> Kept | None:
    """Return the arguments of a call, before it runs; None where no trace keeps calls."""
    if traces.keeper is None or traces.waiting:
        return None
    return traces.keeper.before(operator.op, lambda: _canonical(operator, args, kwargs), _array)


def _canonical(operator: Operator, args: Sequence[Any], kwargs: Keywords) -> Arguments:
    """Return a call in the signature of PyTorch's function.

    Tensors, arguments before a tensor, and arguments without a default are positional; other
    attributes are named, where they differ from their defaults.
    """
    schema = {
        argument.name: argument
        for argument in operator.overload._schema.arguments
        if not argument.is_out
    }
    given = {
        **dict(zip(schema, args, strict=False)),
        **{name: value for name, value in kwargs.items() if name in schema},
    }
    names = [name for name in _ORDER.get(operator.op, tuple(schema)) if name in schema]
    if operator.op in _ONE_BY_ONE:
        texts = [given["equation"]] if operator.op == "einsum" else []
        return Arguments(
            [*texts, *next(value for value in given.values() if isinstance(value, (list, tuple)))]
        )
    if operator.name.startswith("aten::rsub"):
        given = {**given, names[0]: given[names[1]], names[1]: given[names[0]]}
    if operator.op == "rms_norm" and given.get("eps") is None:
        # the epsilon of the dtype that it sums in
        given["eps"] = torch.finfo(torch.promote_types(given["input"].dtype, torch.float32)).eps
    if "pool" in operator.op and one_number(given.get("stride")) == one_number(
        given.get("kernel_size")
    ):
        given.pop("stride", None)
    last = max(
        (n for n, name in enumerate(names) if next(flat((given.get(name),)), None) is not None),
        default=-1,
    )
    positional: list[object] = []
    named: Keywords = {}
    for n, name in enumerate(names):
        argument = schema[name]
        value: Any = given.get(name, argument.default_value)
        if name == "reduction" and value in range(len(_REDUCTIONS)):
            if value == argument.default_value:
                continue
            value = _REDUCTIONS[value]
        if name in _BY_DIMENSION:
            value = one_number(value)
        if n <= last or not (
            argument.has_default_value() or argument.kwarg_only or name in _BY_KEYWORD or named
        ):
            positional.append(value)
        elif name not in _KERNELS_CHOICE and not (
            argument.has_default_value() and _same(value, argument.default_value)
        ):
            named[name] = value
    return Arguments(positional, named)


#: Attributes that choose a kernel, and change nothing about the result.
_KERNELS_CHOICE = frozenset({"cudnn_enable", "cudnn_enabled"})


def _same(value: object, default: object) -> bool:
    values, defaults = (
        list(each) if isinstance(each, (list, tuple)) else [each] for each in (value, default)
    )
    # One number stands for as many as there are dimensions.
    return values == defaults or (
        len({*map(str, values)}) == 1 and {*map(str, values)} == {*map(str, defaults)}
    )


def _array(value: object) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        raise LeftOut(
            f"an argument cannot be written down: {str(value)[:40]!r} ({type(value).__name__})"
        )
    if not has_numbers(value):
        raise LeftOut(
            "it has a tensor without plain numbers (sparse, nested, without data, transformed)"
        )
    with torch.no_grad():
        tensor = value.detach().resolve_conj().resolve_neg().cpu()
        if tensor.dtype is torch.bfloat16:
            from ml_dtypes import bfloat16

            return tensor.contiguous().view(torch.int16).numpy().view(bfloat16)
        return tensor.numpy()
