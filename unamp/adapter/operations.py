"""The namespace of operations that conformance is written against, and its shared part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from unamp.vocabulary import vocabulary

if TYPE_CHECKING:
    import numpy as np

    from unamp.adapter.ways import Way


class Operations(Protocol):
    """The operation namespace that conformance is written against.

    NumPy arrays go in and come out; inside are the framework's tensors.

    Every operation has the canonical signature of its name (that of PyTorch's function): tensors
    first, attributes by keyword. `unamp_conformance.check.cases` has the signatures in use.

    A namespace may also have:

    - ``ways()``: the ways other than eager in which functions run; see `unamp.adapter.ways`
    - ``tensor_kinds()``: the kinds of tensor that are not one dense array; see
      `unamp.adapter.tensor_kinds`
    - ``parameter(array, device=...)`` and ``assign(parameter, array)``, where tensors change in
      place: a tensor as layers have them for parameters; a change of it as optimizers make it
    - ``adam(array, device=...)``, where there are optimizers: makes a parameter and an optimizer;
      returns a function that steps with a gradient, an array, and returns the parameter's values
    - ``set_up()``: prepares a process for the suite alone before anything is computed; it may be
      called again
    - ``pull_back(function, compiled=...)``, where a gradient of any result costs less than that of
      a scalar: returns forward and backward of ``function(leaves, others)``, whose results are a
      value to differentiate and another. It takes the leaves, the others, and a function that makes
      the cotangent from these results; it returns the other result and the leaves' gradients. It
      runs operation by operation, or as one program where the namespace is `dear`, which without
      leaves is forward alone
    - ``cast(tensor, dtype)``, where the operation ``cast`` costs much more than a copy: a cheap
      cast with a gradient, for casts that are not under test
    - ``make_second_device()``: gives the process a device ``"second"`` for the rest of its life on
      a machine without any, and returns whether it could
    - ``absent_devices()``: the devices that are not here, but whose programs can be written down;
      see `unamp.adapter.absent_devices`. Without it, ``unreadable`` may say why
    """

    def __hash__(self) -> int:
        """Return a hash: the namespace keeps what was found out about its operations."""

    def names(self) -> frozenset[str]:
        """Return the canonical operations that the framework has."""

    def __getitem__(self, op: str) -> Callable[..., Any]:
        """Return the framework's function for an operation, in the canonical signature.

        Raises:
            KeyError: where it has none.
        """

    def tensor(self, array: np.ndarray, *, device: str = "cpu", requires_grad: bool = False) -> Any:
        """Return a tensor with the array's values, shape and dtype.

        NumPy lacks bfloat16: the operation ``cast`` makes it.
        """

    def buffer(self, array: np.ndarray, *, device: str = "cpu") -> Any:
        """Return a home for a layer's running statistic: a tensor to update, or a variable."""

    def numpy(self, tensor: Any) -> np.ndarray:
        """Return a tensor's values as a NumPy array; low dtypes arrive, exactly, as float32."""

    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype, e.g. ``"bfloat16"``."""

    def value_and_grad(
        self, function: Callable[..., Any], inputs: Sequence[Any], *, loss_scale: float = 1.0
    ) -> tuple[Any, list[Any]]:
        """Return ``function(*inputs)``, a scalar tensor, and its gradient for each input tensor.

        The gradient is that of the scaled value.
        """


class NamedOperations:
    """The part of an `Operations` that looks a name up; an adapter's own class adds the tensors.

    Args:
        framework: the framework, whose spellings say which operations there are.
        find: returns the framework's function for an operation, in the canonical signature; None
            where it has none.

    Attributes:
        subnormals: whether every kernel keeps subnormal numbers; False where some may take them for
            zeros.
        repeats: whether an operation gives the same bits for the same inputs at every call; if not,
            a loss may differ in its last bits.
        dear: whether each dtype costs time, since kernels are compiled for it; a quick run of the
            suite then looks at each operation and network under one low dtype, which alternates.
        collects: whether the framework itself collects garbage for each graph that it compiles.
    """

    subnormals: ClassVar[bool] = True
    repeats: ClassVar[bool] = True
    dear: ClassVar[bool] = False
    collects: ClassVar[bool] = False

    def __init__(self, framework: str, find: Callable[[str], Callable[..., Any] | None]) -> None:
        self._framework = framework
        self._find = cache(find)

    def names(self) -> frozenset[str]:
        """See `Operations.names`."""
        spelled = (op.name for op in vocabulary().values() if self._framework in op.spellings)
        return frozenset(op for op in spelled if self._find(op) is not None)

    def __getitem__(self, op: str) -> Callable[..., Any]:
        """See `Operations.__getitem__`."""
        found = self._find(op)
        if found is None:
            raise KeyError(op)
        return found

    def buffer(self, array: np.ndarray, *, device: str = "cpu") -> Any:
        """See `Operations.buffer`: a tensor, where tensors can be updated."""
        return self.tensor(array, device=device)  # type: ignore[attr-defined]

    def ways(self) -> Sequence[Way]:
        """Return the ways in which functions run, see `unamp.adapter.ways`: none unless said."""
        return ()
