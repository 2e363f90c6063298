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

    Where the framework runs functions in other ways than eagerly, ``ways()`` returns them: see
    `unamp.adapter.ways`. Where it has tensors that are not one dense array, ``tensor_kinds()``
    returns their kinds: see `unamp.adapter.tensor_kinds`. Where tensors can change in place,
    ``parameter(array, device=...)`` returns one as layers have them for parameters, and
    ``assign(parameter, array)`` changes one as optimizers do. Where it has optimizers,
    ``adam(array, device=...)`` makes a parameter and one of these, and returns a function that
    takes a step with a gradient, an array, and returns the parameter's values then. Where a process
    that runs the suite and nothing else is better set up otherwise, ``set_up()`` does so, before
    anything is computed. It may be called again. Where a gradient of any result costs less than
    that of a scalar, ``pull_back(function, compiled=...)`` returns forward and backward, operation
    by operation or, where the namespace is `dear`, as one program: it takes leaves, other arguments
    of ``function(leaves, others)``, which returns what is differentiated and a result, and a
    function that makes the cotangent of these two; it returns the result and the gradients of the
    leaves. As one program it runs forward alone where there are no leaves. Where the operation
    ``cast`` costs much more than copying numbers, ``cast(tensor, dtype)`` does that, with a
    gradient, for casts that are not what is looked at. Where it can have a second device on a
    machine without any, ``make_second_device()`` gives the process one for the rest of its life,
    under the name ``"second"``, and returns whether it could. Where it can write down what it would
    run on a device that is not here, ``absent_devices()`` returns these devices: see
    `unamp.adapter.absent_devices`. Where it cannot, ``unreadable`` may say why.
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
        framework: whose spellings say which operations there are.
        find: the framework's function for an operation, in the canonical signature; None where it
            has none.

    Attributes:
        subnormals: whether every kernel sees subnormal numbers as what they are; not where some may
            take them for zeros.
        repeats: whether an operation answers the same numbers with the same bits at every call;
            where not, a loss may differ in its last ones.
        dear: whether dtypes cost time by themselves, since kernels are compiled; a quick run of the
            suite then looks at each operation and network under one low dtype, which alternates.
    """

    subnormals: ClassVar[bool] = True
    repeats: ClassVar[bool] = True
    dear: ClassVar[bool] = False

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
