"""Patches of the functions by which MindSpore's compiler finds the object of a name.

An object that is named in bound code is bound, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspore import nn, ops
from mindspore.ops.operations.manually_defined import ops_def
from mindspore.ops.primitive import Primitive

from unamp._function_types import Function
from unamp.adapter.replacing import CodePatch, as_replacement
from unamp_mindspore.binding import kept_alive, where_decorated
from unamp_mindspore.graph_calls import BOUND
from unamp_mindspore.graph_scaling import in_graphs
from unamp_mindspore.moved import parser
from unamp_mindspore.parsing import check_no_region, graph

if TYPE_CHECKING:
    from mindspore._c_expression import TensorPy


@as_replacement
def _resolved(original: Function, namespace: object, symbol: str) -> object:
    """Wrap `resolve_symbol`, by which the compiler finds the object of a name."""
    # The object may be anything, with any `__eq__` and `__hash__`: compare with `is`.
    found = original(namespace, symbol)
    scaling = in_graphs(found)
    if scaling is not found:
        return scaling
    check_no_region(found)
    binding = vars(namespace).get(BOUND)
    return where_decorated(found) if binding is None else binding.bound(found, symbol)


@as_replacement
def _namespace(original: Function, obj: object) -> object:
    """Wrap the function that makes the namespace of a module or object: it has the same binding."""
    made: object = original(obj)
    # `super()` finds attributes of classes alone; the binding is an attribute of the object.
    owner = getattr(obj, "__self__", obj) if isinstance(obj, super) else obj
    binding = getattr(owner, BOUND, None)
    if graph.backward is not None and graph.backward[0] is owner:
        binding = graph.backward[1]
    if made is not None and binding is not None:
        vars(made)[BOUND] = binding
    return made


@as_replacement
def _instance(
    original: Function, cls_type: type, params: tuple[object, ...] | None = None
) -> object:
    """Wrap the function that makes instances: what is made in bound code is bound."""
    made = original(cls_type, params)
    binding = (
        vars(cls_type).get(BOUND)
        if isinstance(made, (Primitive, nn.Cell, ops.GradOperation))
        else None
    )
    if binding is None:
        return made
    kept_alive.append(made)
    return binding.bound(made)


@as_replacement
def _constant_cast(
    original: Function, x: object, dst_type_enum: int | None = None
) -> TensorPy | None:
    """Wrap the cast of constants: it returns None where NumPy has no bfloat16.

    That is so for a NumPy that MindSpore was not built for. None leaves the cast in the graph.
    """
    try:
        return original(x, dst_type_enum)
    except TypeError as error:
        if "bfloat16" in str(error):
            return None
        raise


#: The patches of this module.
RESOLVING_HOOKS = (
    CodePatch(parser.resolve_symbol, _resolved),
    CodePatch(parser.get_module_namespace, _namespace),
    CodePatch(parser.get_class_member_namespace_symbol, _namespace),
    CodePatch(parser.create_instance, _instance),
    CodePatch(ops_def.infer_value_for_Cast, _constant_cast),
)
