"""TensorFlow's own registry of operation types: inputs that share a dtype, dtypes with kernels.

TensorFlow promotes no inputs: an operation type raises where inputs differ that share a dtype
attribute. The registry says which inputs do, so mixed inputs are widened for every operation type,
those of other packages included.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels, op_def_registry

from unamp.vocabulary import vocabulary
from unamp_tensorflow.facts import facts
from unamp_tensorflow.state import ELIGIBLE, FLOAT32

if TYPE_CHECKING:
    from google.protobuf.message import Message

    #: TensorFlow's messages: an operation type's definition, an argument in it, and a kernel.
    OpDef: TypeAlias = Message
    ArgDef: TypeAlias = Message
    KernelDef: TypeAlias = Message

try:
    from tensorflow.python.util import _pywrap_kernel_registry as _kernel_classes
except ImportError:  # a version may lack it: then kernels are listed, which is slower
    _kernel_classes = None

_RESOURCE = tf.resource.as_datatype_enum


class OpType:
    """One operation type: the facts about its inputs and outputs that rules need.

    Attributes:
        name: TensorFlow's name, as ``"MatMul"``.
        op: the vocabulary's name; None where the vocabulary does not have it.
        attr: the dtype attribute of its first floating input; None where that input takes only
            float32.
        positions, names: the inputs with this attribute. A rule casts them; other inputs
            (statistics, indices) keep their dtypes.
        lists: the names of the inputs that take a list of tensors.
        inputs, attrs: the names of all inputs and attributes.
        fixed: further inputs, which take only float32: the names by position. `SparseAdd` has an
            attribute of its own for its threshold, and no kernels but those for float32.
        results: for each output, whether it has the attribute, too; if no output has, whether it is
            float32.
        widens: whether it returns float32 for inputs of any dtype.
        allowed: the numbers of the dtypes that it takes; None for all.
        changes_state: whether it writes to a variable, whose dtype must stay.
        activation_only: whether a rule casts the activation alone (norms, whose parameters and
            statistics stay float32).
    """

    __slots__ = (
        "activation_only", "allowed", "attr", "attrs", "changes_state", "fixed", "inputs",
        "lists", "name", "names", "op", "positions", "results", "widens",
    )  # fmt: skip

    def __init__(self, definition: OpDef, op: str | None) -> None:
        self.name: str = definition.name
        self.op = op
        self.activation_only = op is not None and vocabulary()[op].group == "norm"
        allowed = {
            a.name: frozenset(a.allowed_values.list.type)
            for a in definition.attr
            if a.type == "type"
        }
        self.attr: str | None = next(
            (a.type_attr for a in definition.input_arg if _floats(a, allowed)), None
        )
        self.allowed = (allowed.get(self.attr) or None) if self.attr else frozenset({FLOAT32})
        inputs: list[tuple[int, ArgDef]] = list(enumerate(definition.input_arg))
        fixed: dict[int, str] = {
            n: a.name
            for n, a in inputs
            if a.type_attr == "Treal"
            or (not a.type_attr and not a.type_list_attr and a.type == FLOAT32)
        }
        chosen = {n: a.name for n, a in inputs if a.type_attr == self.attr} if self.attr else fixed
        if self.activation_only and self.allowed == frozenset({FLOAT32}):
            # The activation is the first. In other norms parameters have an attribute of their own.
            chosen = dict(list(chosen.items())[:1])
        self.positions = tuple(chosen)
        self.names = tuple(chosen.values())
        self.lists = frozenset(a.name for a in definition.input_arg if a.number_attr)
        self.fixed = fixed if self.attr else {}
        self.attrs = tuple(a.name for a in definition.attr)
        self.inputs = tuple(a.name for a in definition.input_arg)
        self.results = tuple(_matches(a, self.attr) for a in definition.output_arg)
        self.widens = self.attr is not None and not any(self.results)
        if self.widens:  # as resizing does
            self.results = tuple(_matches(a, None) for a in definition.output_arg)
            self.widens = any(self.results)
        self.changes_state = any(a.is_ref or a.type == _RESOURCE for a in definition.input_arg)

    @property
    def several(self) -> bool:
        """Return whether a call can have several floating inputs, whose dtypes may differ."""
        return len(self.positions) + len(self.fixed) > 1 or bool(
            self.lists.intersection(self.names)
        )


def _floats(argument: ArgDef, allowed: Mapping[str, frozenset[int]]) -> bool:
    attr = argument.type_attr
    return bool(attr) and (not allowed[attr] or bool(ELIGIBLE & allowed[attr]))


def _matches(argument: ArgDef, attr: str | None) -> bool:
    return bool(argument.type_attr == attr if attr else argument.type == FLOAT32)


@cache
def op_types() -> Mapping[str, OpType]:
    """Return every operation type with a floating input, by its name."""
    everything = op_def_pb2.OpList()
    everything.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    made = (op_type(definition.name) for definition in everything.op)
    return {each.name: each for each in made if each is not None}


@cache
def op_type(name: str) -> OpType | None:
    """Return one operation type; None where it has no floating input.

    Each is made when first asked for: a model uses a few dozen of the thousand.
    """
    definition = op_def_registry.get(name)
    if definition is None:
        return None
    made = OpType(definition, _spelled().get(name))
    return made if made.positions else None


@cache
def _spelled() -> Mapping[str, str]:
    """Return the vocabulary's names of operation types."""
    return {s: op.name for op in vocabulary().values() for s in op.spellings.get("tensorflow", ())}


@cache
def has_kernel(name: str, dtype: int) -> bool:
    """Return whether a device of this machine has a kernel for an operation type in a dtype.

    TensorFlow places the operation there by itself.
    """
    found = op_type(name)
    if found is None:
        raise KeyError(name)
    if dtype != FLOAT32 and found.op is not None and always_emulated(found.op):
        return False
    if found.allowed is not None and dtype not in found.allowed:
        return False
    if any(kernel_class(found, dtype, device) for device in _devices()):
        return True
    registered = _registered(name)
    return not registered or any(
        kernel.device_type in _devices() and _takes(kernel, found.attr, dtype)
        for kernel in registered
    )


def kernel_class(found: OpType, dtype: int, device: str) -> bytes:
    """Return the class of the kernel for a node with a dtype, in microseconds.

    Listing all kernels of an operation type takes a millisecond. The class is empty where there is
    no kernel, or none for the default values of the other attributes.
    """
    if _kernel_classes is None:
        return b""
    node = node_def_pb2.NodeDef(name=found.name, op=found.name, device=f"/device:{device}:0")
    for attr in op_def_registry.get(found.name).attr:
        if attr.name == found.attr:
            node.attr[attr.name].type = dtype
        elif attr.HasField("default_value"):
            node.attr[attr.name].CopyFrom(attr.default_value)
        elif attr.type == "type":
            allowed = attr.allowed_values.list.type
            node.attr[attr.name].type = FLOAT32 if not allowed or FLOAT32 in allowed else allowed[0]
    try:
        return bytes(_kernel_classes.TryFindKernelClass(node.SerializeToString()))
    except tf.errors.OpError:  # a kernel is chosen by an attribute that has no default value
        return b""


@cache
def _registered(name: str) -> Sequence[KernelDef]:
    return tuple(kernels.get_registered_kernels_for_op(name).kernel)


@cache
def raw_names(name: str, registered: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of inputs and attributes in `tf.raw_ops`, for those in the registry.

    A few names differ (``axis`` for ``reduction_indices``); the order does not.
    """
    parameters = inspect.signature(getattr(tf.raw_ops, name)).parameters
    others = (each for each in parameters if each not in registered)
    return tuple(each if each in parameters else next(others) for each in registered)


@cache
def always_emulated(op: str) -> bool:
    """Return whether low is always emulated for an operation, which lacks a low kernel.

    The kernel may be the operation's, its gradient's, or one that its Python code needs.
    """
    emulated = facts().emulated
    on_cpu = emulated["on_cpu"] if _devices() == {"CPU"} else ()
    return (
        vocabulary()[op].group in emulated["groups"] or op in emulated["operations"] or op in on_cpu
    )


def _takes(kernel: KernelDef, attr: str | None, dtype: int) -> bool:
    return all(dtype in c.allowed_values.list.type for c in kernel.constraint if c.name == attr)


@cache
def _devices() -> frozenset[str]:
    return frozenset(device.device_type for device in tf.config.list_physical_devices())
