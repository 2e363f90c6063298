"""Devices that are not here, but whose programs a framework can write down.

An adapter lists them for conformance: the method ``absent_devices()`` of a framework's `Operations`
returns them; without the method there are none. Nothing is computed: the suite reads decisions, the
dtypes in which a program would compute on the device, and never numbers.

The suite calls ``read(function, leaves, others, buffers)`` with

- ``function``: calls the framework's operations with three lists of tensors, and opens the region
  itself. It names each call by ``place``;
- ``leaves``, ``others``, ``buffers``: NumPy arrays from which tensors on the device are made: those
  that are differentiated, those that are not, and running statistics. With leaves, ``function``
  returns a scalar, and the backward pass is read too where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from unamp._function_types import Function
from unamp.vocabulary import vocabulary

if TYPE_CHECKING:
    import numpy as np

#: The kinds of operation that show a precision, and the result of one call that another takes. All
#: other operations move numbers.
Kind = Literal["product", "reduction", "transcendental", "elementwise", "result"]

#: The kinds by the groups of the vocabulary. Elementwise functions are looked at one by one.
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("matmul", "conv", "attention", "recurrent"), "product"),
    **dict.fromkeys(("reduction", "norm", "softmax", "loss"), "reduction"),
    **dict.fromkeys(("activation", "special"), "transcendental"),
    # the first two have no low kernels
    **dict.fromkeys(("fft", "linalg", "pooling", "resize"), "reduction"),
    **dict.fromkeys(("comparison", "elementwise"), "elementwise"),
}
_TRANSCENDENTAL = frozenset(
    (
        "acos asin atan cos cosh erf erfc erfinv exp expm1 log log10 log1p log2 rsqrt "
        "sin sinh sqrt tan tanh"
    ).split()
)
#: These change a sign, and no precision.
_EXACT = frozenset({"abs", "copysign", "neg", "positive", "sgn", "sign"})


class Unreadable(Exception):
    """A function has no program for an absent device, whatever the policy; the message says why.

    Attributes:
        why: the reason in a few words, the same for all functions that have it.
        upstream: what the framework said; empty where it was not asked.
    """

    def __init__(self, device: str, why: str, upstream: Exception | None = None) -> None:
        super().__init__(f"{device} has no program for it outside of any region: {why}")
        self.why = why
        self.upstream = (
            f"{type(upstream).__name__}: {next(iter(str(upstream).splitlines()), '')[:200]}"
            if upstream
            else ""
        )


class Computed(NamedTuple):
    """One operation of a program.

    Attributes:
        place: the call that it belongs to, as ``place`` named it; empty outside of all calls.
        backward: whether it belongs to the backward pass.
        name: the framework's name for it.
        kind: its kind.
        operands, results: the names of the floating dtypes among its operands and its results.
        entered: the dtypes that the numbers behind the operands had when they entered the place.
            Frameworks add low numbers up in float32: a low dtype here shows that the policy is
            followed all the same.
    """

    place: str
    backward: bool
    name: str
    kind: Kind
    operands: tuple[str, ...]
    results: tuple[str, ...]
    entered: tuple[str, ...]


def kind_of(op: str) -> Kind | None:
    """Return the kind of an operation by its canonical name.

    None where it moves numbers, or the vocabulary does not have it.

    Args:
        op: the name.
    """
    if op in _TRANSCENDENTAL:
        return "transcendental"
    operation = vocabulary().get(op)
    return _KINDS.get(operation.group) if operation is not None and op not in _EXACT else None


class Numbers(NamedTuple):
    """The origin of a value's numbers: the place that made them, and the dtypes that entered it.

    The dtypes are those of the numbers from which the place made them. A constant has none.
    """

    place: str
    backward: bool
    entered: frozenset[str]


def entering(made: Numbers | None, dtypes: tuple[str, ...], place: str) -> frozenset[str]:
    """Return the dtypes in which the numbers of a value entered a place.

    They are the value's own dtypes where another place made it, and none for a constant.

    Args:
        made: what is known of the value; None where no operation of the program made it.
        dtypes: the names of its floating dtypes.
        place: the place.
    """
    return (
        made.entered
        if made is not None and (made.place == place or not made.entered)
        else frozenset(dtypes)
    )


def result_of(made: Numbers | None, dtypes: tuple[str, ...], place: str) -> tuple[Computed, ...]:
    """Return an operand as the result of the other place that made it; empty where none did.

    See `entering` for the arguments.
    """
    if made is None or made.place in ("", place) or made.backward or not dtypes:
        return ()
    return (Computed(made.place, False, "result", "result", dtypes, dtypes, dtypes),)


class Programs(NamedTuple):
    """The operations of a function's programs for the absent device and for the CPU, in order.

    `cpu` is None where the CPU has other kernels or no such program: the two cannot be compared.
    """

    there: Sequence[Computed]
    cpu: Sequence[Computed] | None


Arrays: TypeAlias = "Sequence[np.ndarray]"
Read = Callable[[Function, Arrays, Arrays, Arrays], Programs]
Run = Callable[[Function, Arrays, Arrays, Arrays], object]


@dataclass(frozen=True)
class AbsentDevice:
    """A device that is not here.

    Args:
        name: the way to its programs, and the framework's word for it: ``"lowered:cuda"``.
        read: writes a function's programs down; see the module.
        place: names the operations that are called inside of it.
        region: the device that a region is opened for; None where regions are alike on all devices.
        reason: says in a few words why a function has no program, given the framework's error.
        run: calls a function for a trace, with the arguments of ``read``, where a trace cannot see
            a program as it is written down, or where writing it down takes long. It may do so on
            the CPU and without the backward pass; the decisions are those of this run. None where a
            trace sees ``read``.
        beside: other devices with programs of the same functions that call other kernels: the graph
            that a compiler traces, and the CPU's. At each place the program that ``read`` reads
            must compute in the same dtypes as each of theirs.
    """

    name: str
    read: Read
    place: Callable[[str], AbstractContextManager[object]]
    region: str | None = None
    reason: Callable[[Exception], str] = lambda error: ""
    run: Run | None = None
    beside: tuple[AbsentDevice, ...] = ()

    def unreadable(self, error: Exception) -> Unreadable:
        """Return the error for a function without a program.

        It quotes the framework's error, which was raised outside of any region.
        """
        return Unreadable(
            self.name, self.reason(error) or "the framework itself refuses the call", error
        )
