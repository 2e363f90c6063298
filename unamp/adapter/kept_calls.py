"""Keeping the arguments of operations, for `unamp.trace(keep=...)` and `unamp replay`.

A call is kept in the canonical signature of its operation (see
`unamp.adapter.operations.Operations`), in which every framework can run it again. Its tensors go
to a file of safetensors, and the rest to the record. An adapter calls this module, and provides the
canonical call and the numbers of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unamp.adapter.framework_types import Tensor
from unamp.adapter.records import Call
from unamp.adapter.shadowing import DRAWING, DRAWS, LeftOut, said
from unamp.errors import shortened
from unamp.vocabulary import vocabulary

if TYPE_CHECKING:
    import numpy as np

#: The bytes of tensors that a trace keeps by default.
LIMIT = 1 << 30
#: The name of an operation's first floating result in its file; its inputs are numbered.
RESULT = "result"
#: The dtypes of tensors that are kept.
KEPT_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)


#: Returns the numbers of a tensor with their axes in another order.
Lay = Callable[["np.ndarray"], "np.ndarray"]

#: Gives the numbers of a tensor in its dtype, and raises `LeftOut` for a value that is no tensor.
ToArray = Callable[[object], "np.ndarray"]


class Laid(NamedTuple):
    """A tensor whose numbers lie in another order than the canonical one.

    Attributes:
        tensor: the tensor.
        lay: returns its numbers, a NumPy array, in the canonical order.
    """

    tensor: Tensor
    lay: Lay


class Arguments(NamedTuple):
    """A call in the canonical signature of its operation.

    Attributes:
        args, kwargs: the arguments; a tensor may be `Laid`.
        result: returns the numbers of the result, a NumPy array, in the canonical order; None where
            they have that order.
    """

    args: Sequence[object]
    kwargs: Mapping[str, object] = {}
    result: Lay | None = None


#: By an operation's canonical name or a framework's own: a function with the framework's parameters
#: that returns the canonical call, or raises `LeftOut`.
Signatures = Mapping[str, Callable[..., Arguments]]

#: Groups whose functions have the same signature everywhere, as far as they take tensors alone.
_ALIKE = frozenset({"elementwise", "activation"})
#: Operations of these groups whose defaults differ between frameworks.
_DIFFERING = frozenset({"gelu", "leaky_relu", "logit"})
#: Operations that take a number for one of their tensors.
_NUMBERS = frozenset({"add", "div", "mul", "pow", "sub"})
#: Methods of a tensor that is the second operand.
_REFLECTED = frozenset(
    f"__r{name}__" for name in "add div divmod floordiv matmul mod mul pow sub truediv".split()
)


class Calls:
    """Writes calls of an adapter's operations in their canonical signatures.

    Elementwise operations and activations that take tensors alone need no entry in the tables.

    Args:
        functions: the signatures of functions whose arguments differ.
        layers: the signatures of layers that are one operation; the layer is the first argument.
        array: gives the numbers of a tensor as a NumPy array of their dtype, and raises `LeftOut`
            for a value that is no tensor.
    """

    def __init__(self, functions: Signatures, layers: Signatures, array: ToArray) -> None:
        self._functions = functions
        self._layers = layers
        self.array = array

    def canonical(
        self,
        op: str,
        name: str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        layer: bool,
    ) -> Arguments:
        """Return a call in the canonical signature.

        Args:
            op: the operation.
            name: the framework's name of the function or layer; the tables are asked for it first.
            args, kwargs: the call, as the framework has it.
            layer: whether the first argument is a layer.

        Raises:
            LeftOut: where the call has no canonical form here.
        """
        if name.rpartition(".")[2] in _REFLECTED:
            args = args[::-1]
        table = self._layers if layer else self._functions
        if (signature := table.get(name) or table.get(op)) is not None:
            try:
                return signature(*args, **kwargs)
            except TypeError as error:
                raise LeftOut(f"its arguments have no canonical form here: {error}") from error
        named = [value for key, value in kwargs.items() if key != "name" and value is not None]
        given = [*args, *named]
        numbers = sum(type(value) in (int, float) for value in given)
        tensors = sum(hasattr(value, "dtype") and hasattr(value, "shape") for value in given)
        alike = (
            not layer
            and len(named) < 2
            and vocabulary()[op].group in _ALIKE
            and op not in _DIFFERING
        )
        if (
            not alike
            or tensors + numbers < len(given)
            or (numbers and (op not in _NUMBERS or len(given) != 2))
        ):
            raise LeftOut(f"the arguments of {op} have no canonical form here")
        return Arguments(given)


def one_number(value: Any) -> object:
    """Return the number that a list of equal ones, such as a stride, stands for; else the value."""
    several = (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(type(each) is int for each in value)
    )
    return value[0] if several and len(set(value)) == 1 else value


class Keeper:
    """Writes the tensors of calls into files of a folder, each call into one.

    Args:
        folder: the folder; it is made where it is missing, and must be empty.
        limit: the most bytes of tensors. A call beyond that is left out, and its record says so.

    Raises:
        ValueError: where the folder is not empty, or is no folder.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        import importlib.util

        if None in map(importlib.util.find_spec, ("safetensors", "ml_dtypes")):
            raise ModuleNotFoundError(
                "to keep inputs takes safetensors and ml_dtypes; pip install 'unamp[replay]'"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"keep: {folder}: {error.strerror}") from error
        if next(folder.iterdir(), None) is not None:
            raise ValueError(f"keep: {folder} is not empty; name a new folder")
        self._folder = folder
        self._left = limit
        self._limit = limit
        self._count = 0

    def before(self, op: str, canonical: Callable[[], Arguments], array: ToArray) -> Kept:
        """Return the arguments of a call, copied before it changes them.

        Args:
            op: the operation.
            canonical: returns the arguments in the canonical signature, or raises `LeftOut` with
                the reason why it cannot.
            array: gives the numbers of a tensor as a NumPy array of their dtype, and raises
                `LeftOut` for a value that is no tensor.
        """
        kept = Kept(self, array)
        try:
            if op in DRAWING:
                raise LeftOut(DRAWS)
            args, kwargs, kept.lay = canonical()
            kept.args = [kept.encode(value) for value in args]
            kept.kwargs = {name: kept.encode(value) for name, value in kwargs.items()}
        except LeftOut as reason:
            kept.tensors, kept.left_out = {}, str(reason)
        except Exception as error:
            # a framework may raise any error here; the network's own run must go on
            kept.tensors, kept.left_out = {}, f"to write it down raises {said(error)}"
        return kept

    def write(self, tensors: dict[str, np.ndarray]) -> str:
        """Write the tensors of one call, and return the name of the file.

        Raises:
            LeftOut: where the tensors would exceed the limit.
        """
        size = sum(tensor.nbytes for tensor in tensors.values())
        if size > self._left:
            raise LeftOut(f"the trace keeps {self._limit} bytes of tensors at most (keep_limit)")
        from safetensors.numpy import save_file

        self._left -= size
        self._count += 1
        name = f"{self._count:06}.safetensors"
        save_file(tensors, self._folder / name)
        return name


class Kept:
    """The arguments of a call that runs.

    Args:
        keeper: writes the file.
        array: see `Keeper.before`.
    """

    def __init__(self, keeper: Keeper, array: ToArray) -> None:
        self._keeper = keeper
        self._array = array
        self.tensors: dict[str, np.ndarray] = {}
        self.args: list[object] = []
        self.kwargs: dict[str, object] = {}
        self.lay: Lay | None = None
        self.left_out = ""

    def encode(self, value: object) -> object:
        """Return a value as JSON can hold it; tensors are set aside for the file."""
        if value is None or type(value) is bool:
            return value
        if type(value) is int or type(value) is str:
            from unamp._strict_json import DIGITS  # slow to import

            if value.isprintable() if isinstance(value, str) else abs(value) < 10**DIGITS:
                return value
            raise LeftOut(f"a trace's JSON does not hold the argument {shortened(value, 40)}")
        if type(value) is float:
            return value if math.isfinite(value) else {"number": str(value)}
        if isinstance(value, (list, tuple)) and not isinstance(value, Laid):
            return [self.encode(each) for each in value]
        name = len(self.tensors)
        self.tensors[str(name)] = self._numbers(value)
        return {"tensor": name}

    def after(self, result: Tensor | None) -> Call:
        """Write the call to its file, and return its record.

        Args:
            result: the first floating tensor of the result; None where there is none.
        """
        if not self.left_out:
            try:
                if result is not None:
                    self.tensors[RESULT] = self._numbers(
                        result if self.lay is None else Laid(result, self.lay)
                    )
                return Call(self._keeper.write(self.tensors), self.args, self.kwargs)
            except LeftOut as reason:
                self.left_out = str(reason)
            except Exception as error:  # the training must go on
                self.left_out = f"to write it down raises {said(error)}"
        return Call("", [], {}, self.left_out)

    def _numbers(self, tensor: object) -> np.ndarray:
        import numpy as np

        tensor, lay = tensor if isinstance(tensor, Laid) else (tensor, np.asarray)
        numbers = lay(tensor if isinstance(tensor, np.ndarray) else self._array(tensor))
        array = np.array(numbers, order="C")  # a copy: the operation may change it in place
        if array.dtype.name not in KEPT_DTYPES:
            raise LeftOut(f"a tensor in {array.dtype.name} is not kept")
        return array
