"""The operators through which PyTorch computes the vocabulary's operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch

from unamp._function_types import Function, Keywords
from unamp.adapter.observing import traced
from unamp.vocabulary import OPERATORS, Operation, vocabulary
from unamp_torch.casting import Eligible
from unamp_torch.facts import facts
from unamp_torch.state import DTYPES, LOW

if TYPE_CHECKING:
    #: PyTorch's object for one overload of an operator.
    Overload = torch._ops.OpOverload[..., object]

#: Groups whose other tensors are parameters and statistics, which stay as they are.
_ACTIVATION_ONLY = frozenset({"norm", "quantize"})

#: Functions whose Python binding does not take the operator's arguments as they are.
_BINDING_DIFFERS = frozenset({"einsum", "gradient", "nonzero", "split"})


class Operator:
    """One overload of an ATen operator, with the facts about it that a rule needs.

    Attributes:
        op: the vocabulary's name.
        name: the overload's own name, e.g. ``"aten::add.Tensor"``.
        overload: PyTorch's object.
        call: calls it with its arguments as the dispatcher passes them to a kernel.
        composite: whether it is made of other operators.
        eligible: the arguments that a rule casts.
        computes: whether it does more than move or make data, in the dtype that it is told.
        no_kernel: the device types and low dtypes for which it is known to have no kernel.
        dtype_position: where an explicit result dtype may stand, or None; a call that gives one
            keeps its meaning.
        sparse_position: where sparse gradients may be asked for, or None: PyTorch casts no sparse
            gradient, so that the operator computes in the dtype of its first argument.
    """

    __slots__ = (
        "call",
        "composite",
        "computes",
        "dtype_position",
        "eligible",
        "name",
        "no_kernel",
        "op",
        "overload",
        "sparse_position",
    )

    def __init__(self, op: str, overload: Overload, activation_only: bool) -> None:
        schema = overload._schema
        self.op = op
        self.name: str = overload.name()
        self.overload = overload
        self.computes = traced(op)
        self.call = _binding(overload)
        self.composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            self.name, "CompositeImplicitAutograd"
        )
        self.eligible = Eligible(schema, activation_only)
        self.no_kernel = frozenset(
            (device, DTYPES[dtype]) for (device, dtype), ops in facts().lacking.items() if op in ops
        )
        self.dtype_position: int | None = next(
            (i for i, a in enumerate(schema.arguments) if a.name == "dtype"), None
        )
        self.sparse_position: int | None = next(
            (
                i
                for i, a in enumerate(schema.arguments)
                if a.name in ("sparse", "sparse_grad") and str(a.type) == "bool"
            ),
            None,
        )

    def calling(self, call: Function) -> Operator:
        """Return the same operator, called in another way."""
        other = copy.copy(self)
        other.call, other.composite = call, False
        return other

    def without_low_kernels(self, device: str) -> Operator:
        """Return the same operator, as if a device had no low kernel for it."""
        other = copy.copy(self)
        other.no_kernel = frozenset((device, dtype) for dtype in LOW)
        return other

    def keeps_explicit_dtype(self, args: Sequence[object], kwargs: Keywords) -> bool:
        """Return whether the caller named the dtype: an explicit cast, which no rule changes."""
        if self.dtype_position is None:
            return False
        return kwargs.get("dtype") is not None or (
            self.dtype_position < len(args) and args[self.dtype_position] is not None
        )

    def has_sparse_gradient(self, args: Sequence[object], kwargs: Keywords) -> bool:
        """Return whether the caller asked for sparse gradients."""
        if self.sparse_position is None:
            return False
        if self.sparse_position < len(args):
            return bool(args[self.sparse_position])
        return bool(kwargs.get("sparse") or kwargs.get("sparse_grad"))


#: Applies a rule to one call, given the operator, the arguments and the low dtype.
Action = Callable[[Operator, Sequence[object], Keywords, torch.dtype], object]


def _binding(overload: Overload) -> Function:
    """Return the fastest way to call an overload.

    Python's own binding of a function is twice as fast to call as the overload object, and takes
    the same arguments in the same order. The overload is the only way to functions without one.
    """
    name = overload._schema.name.removeprefix("aten::")
    own: Function = overload._op
    # The dispatcher leaves out arguments that have the schema's default, but the binding has
    # another default for a reduction: "none".
    if name in _BINDING_DIFFERS or any(
        argument.name == "reduction" for argument in overload._schema.arguments
    ):
        return own
    bindings = (
        getattr(namespace, name, None) for namespace in (torch._C._VariableFunctions, torch._C._nn)
    )
    return next((binding for binding in bindings if binding is not None), own)


@cache
def operators(op: str, *, inner: bool = False) -> tuple[Operator, ...]:
    """Return the overloads through which an operation is reached; none where PyTorch lacks it.

    In-place variants and those with an explicit output are left out, as no rule touches them;
    further overloads that exist for TorchScript alone, and without `inner`, operators that only
    other operators call.
    """
    return tuple(_overloads(op, inner))


def _overloads(op: str, inner: bool) -> Iterator[Operator]:
    entry = vocabulary()[op]
    if entry.group == "cast":
        # An explicit cast keeps its meaning, and with a kernel in Python for `detach`, parameters
        # could not be made.
        return
    for name in entry.spellings.get("torch", ()):
        packet = None if "." in name else packet_of(name)
        if packet is None or (name in facts().inner and not inner):
            continue
        for overload in (getattr(packet, each) for each in packet.overloads()):
            if not _is_for_callers(overload):
                continue
            operator = Operator(op, overload, activation_only=entry.group in _ACTIVATION_ONLY)
            # An operator without tensor inputs needs a kernel where it is computed with operations
            # that rules would reach.
            made_of_others = entry.group == "creation" and op in facts().made_of
            if operator.eligible.positions or operator.eligible.keywords or made_of_others:
                yield operator


def name_operators_of_libraries() -> None:
    """Add every operator that libraries brought to PyTorch to the vocabulary, for `unamp.trace`."""
    known = vocabulary()
    named = known.spelled("torch")
    for name in _of_libraries(tuple(torch._C._dispatch_get_all_op_names())):
        if name not in named and packet_of(name) is not None:
            known.add(Operation(name, OPERATORS, spellings={"torch": (name,)}))


@lru_cache(1)
def _of_libraries(overloads: tuple[str, ...]) -> frozenset[str]:
    """Return the operators that are not PyTorch's own, of all that there are at present."""
    names, own = {full.partition(".")[0] for full in overloads}, facts().own_namespaces
    return frozenset(name for name in names if name.partition("::")[0] not in own)


def packet_of(name: str) -> torch._ops.OpOverloadPacket[..., object] | None:
    """Return PyTorch's object for an operator, ``"add"`` or ``"library::name"``; else None."""
    namespace, _, own = name.rpartition("::")
    found = getattr(getattr(torch.ops, namespace or "aten"), own, None)
    return found if isinstance(found, torch._ops.OpOverloadPacket) else None


def _is_for_callers(overload: Overload) -> bool:
    schema = overload._schema
    if schema.is_mutable or any(argument.is_out for argument in schema.arguments):
        return False
    # Where the result's dtype is named in every call, every call is an explicit cast.
    if any(
        argument.name in ("dtype", "out_dtype") and not argument.has_default_value()
        for argument in schema.arguments
    ):
        return False
    # Overloads for TorchScript alone have no kernel.
    return bool(torch._C._dispatch_has_kernel(overload.name()))
