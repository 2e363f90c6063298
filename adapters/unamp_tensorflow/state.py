"""The state of a thread, the protocol of plans for lower layers, and TensorFlow's dtype numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import tensorflow as tf

from unamp import dtypes
from unamp._function_types import Keywords
from unamp.adapter.replacing import PatchGroup
from unamp.adapter.state import Dtypes, ThreadState
from unamp.adapter.state import Plan as AnyPlan
from unamp.policy import Rule

#: A name for readers: TensorFlow has no types, so a type checker takes this for `Any`.
Tensor: TypeAlias = tf.Tensor

if TYPE_CHECKING:
    import numpy as np

    #: An argument or a result: tensors, maybe nested, and anything else.
    Value: TypeAlias = Any

    #: A tensor of any kind: dense, a variable, an array of NumPy, or one made of dense tensors.
    SomeTensor: TypeAlias = (
        tf.Tensor
        | tf.Variable
        | tf.keras.Variable
        | np.ndarray
        | tf.RaggedTensor
        | tf.SparseTensor
        | tf.IndexedSlices
    )

    #: The gradient of one variable, dense or as slices.
    Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices

    #: The result of an operation type: its one output, or a list of several. Without outputs it is
    #: None, or in a graph the node.
    Outputs: TypeAlias = tf.Tensor | list[tf.Tensor | list[tf.Tensor]] | tf.Operation | None

    #: The result of `_apply_op_helper`: the number of tensors in each output that is a list, None
    #: for others; whether the operation type has state; the node; and its outputs.
    Added: TypeAlias = tuple[list[int | None], bool, tf.Operation, Outputs]

#: The numbers of the dtypes in TensorFlow's C++: comparing numbers costs a tenth of comparing dtype
#: objects.
DTYPES: Mapping[str, int] = Dtypes(
    "tensorflow",
    {dtype.name: dtype.as_datatype_enum for dtype in (tf.float16, tf.bfloat16, tf.float32)},
)
NAMES: Mapping[int, str] = {number: name for name, number in DTYPES.items()}
ELIGIBLE = frozenset(NAMES)
FLOAT32 = DTYPES[dtypes.FLOAT32]


class Action(Protocol):
    """A rule, made ready for one operation type."""

    def eager(self, ctx: object, name: str | None, args: tuple[Value, ...], /) -> Outputs:
        """Execute the operation type under the rule.

        Arguments are as `TFE_Py_FastPathExecute` takes them.
        """

    def graph(
        self, original: Callable[..., Added], name: str | None, keywords: Keywords, /
    ) -> Added:
        """Add a node of the operation type to a graph under the rule.

        `original` is the original of `_apply_op_helper`.
        """


class Plan(AnyPlan, Protocol):
    """A policy made ready for TensorFlow, as code that carries out single calls sees it.

    `plans` makes it.
    """

    @property
    def low(self) -> int:
        """The number of the policy's dtype."""

    @property
    def key(self) -> tuple[object, ...]:
        """The part of a traced function's key that differs between plans."""

    @property
    def actions(self) -> Mapping[str, Action | None]:
        """The actions for operation types, by name; None for one that is left alone."""

    @property
    def patches(self) -> tuple[PatchGroup, ...]:
        """The patches of the composite operations whose parts alone would not follow the rule."""

    @property
    def within_composite(self) -> bool:
        """Return whether this is the plan for the parts of a composite operation.

        Composite operations among the parts follow no rule.
        """

    @property
    def for_parts(self) -> Plan | None:
        """The plan for the parts of a composite function, whose inputs are cast; else None."""

    @property
    def observed(self) -> Plan:
        """The same plan, with every operation reported."""

    def low_alone(self, dtype: str, /) -> Plan:
        """Return a plan that computes everything in a low dtype, whatever this one says."""

    def for_parts_of_layer(self, op: str, target: int, /) -> Plan:
        """Return the plan for the parts of a layer that computes in a dtype.

        The parts cast, since a layer's parameters are not among the inputs that were cast.
        """

    def follows_parts(self, op: str, /) -> bool:
        """Return whether a composite operation's parts follow their own rules, and it has none."""

    def for_parts_with_rules(self, op: str, /) -> Plan:
        """Return the plan for the parts of an operation for which `follows_parts` is true."""

    def rule(self, op: str | None, /) -> Rule:
        """Return the rule in force. None is an operation type that the vocabulary does not have."""

    def ban(self, op: str | None, /) -> str:
        """Return the text of the error for a banned operation."""


class Thread(ThreadState[Plan]):
    """One thread's state; see `unamp.adapter.state.ThreadState`.

    Attributes:
        parameters: in a layer that computes low, its parameters by their ids, each with its cast,
            since a layer's code may use a parameter several times; None elsewhere.
        recorded: whether the node that is being added to a graph is on the tape already; see
            `unamp_tensorflow.calls.must_record`.
    """

    parameters: dict[int, tuple[SomeTensor, SomeTensor]] | None = None
    recorded: bool = False


thread = Thread()
