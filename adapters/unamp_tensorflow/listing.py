"""TensorFlow's own registry of operation types: inputs that share a dtype, dtypes with kernels.

Nothing in TensorFlow promotes: an operation type raises where inputs differ that share a dtype
attribute. The registry says which those are, so mixed inputs are widened for every operation type
that there is, those of other packages included, and not for those alone that somebody thought of.
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
except ImportError:  # not every version may have it, and all that it does is to be quick
    _kernel_classes = None

_RESOURCE = tf.resource.as_datatype_enum


class OpType:
    """One operation type, as far as rules ask.

    Attributes:
        name: TensorFlow's name for it, ``"MatMul"``.
        op: the vocabulary's name; None where the vocabulary does not have it.
        attr: the dtype attribute that its first floating input has; None where that is float32
            alone.
        positions, names: the inputs of that dtype. A rule casts these; the others (statistics,
            indices) keep theirs.
        lists: the names of the inputs that take a list of tensors.
        inputs, attrs: the names of all inputs and attributes.
        fixed: further inputs that take float32 alone, position and name.
        results: for each output, whether it has that dtype too, or where none has it, whether it is
            float32.
        widens: whether it answers in float32 whatever it is given.
        allowed: the numbers of the dtypes that it takes; None for all.
        changes_state: whether it writes to a variable: only that keeps its dtype.
        activation_only: whether a rule is about the activation alone (norms, whose parameters and
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
            if not a.type_attr and not a.type_list_attr and a.type == FLOAT32
        }
        chosen = {n: a.name for n, a in inputs if a.type_attr == self.attr} if self.attr else fixed
        if self.activation_only and self.allowed == frozenset({FLOAT32}):
            # Elsewhere parameters have an attribute of their own.
            chosen = dict(list(chosen.items())[:1])
        self.positions = tuple(chosen)
        self.names = tuple(chosen.values())
        self.lists = frozenset(a.name for a in definition.input_arg if a.number_attr)
        self.fixed = fixed if self.attr else {}
        self.attrs = tuple(a.name for a in definition.attr)
        self.inputs = tuple(a.name for a in definition.input_arg)
        self.results = tuple(_matches(a, self.attr) for a in definition.output_arg)
        self.widens = self.attr is not None and not any(self.results)
        if self.widens:  # resizing answers in float32, whatever it is given
            self.results = tuple(_matches(a, None) for a in definition.output_arg)
            self.widens = any(self.results)
        self.changes_state = any(a.is_ref or a.type == _RESOURCE for a in definition.input_arg)

    @property
    def several(self) -> bool:
        """Return whether its inputs can differ."""
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

    A model meets a few dozens of the thousand.
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
    """Return whether an operation type runs in a dtype somewhere on this machine.

    TensorFlow places it there by itself.
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
    """Return the class of the kernel for a node with a dtype.

    It is empty where there is no kernel, or none for the other attributes.

    TensorFlow answers in microseconds; to list an operation type's kernels takes it a millisecond.
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
    except tf.errors.OpError:  # a kernel asks for an attribute that is not among those
        return b""


@cache
def _registered(name: str) -> Sequence[KernelDef]:
    return tuple(kernels.get_registered_kernels_for_op(name).kernel)


@cache
def raw_names(name: str, registered: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of an operation type's inputs and attributes in `tf.raw_ops`.

    Given are those in the registry. A few differ (``axis`` for ``reduction_indices``); their order
    does not.
    """
    parameters = inspect.signature(getattr(tf.raw_ops, name)).parameters
    others = (each for each in parameters if each not in registered)
    return tuple(each if each in parameters else next(others) for each in registered)


@cache
def always_emulated(op: str) -> bool:
    """Return whether an operation's low precision is always emulated.

    It, its Python code or its gradient has no low kernel then.
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
