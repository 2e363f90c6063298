"""Replay one recorded operation alone, on its own inputs: in float64, float32 and low.

It runs in any framework. Some frameworks have no float64 kernel for an operation, or a kernel that
takes float64 and computes in float32. Errors are then relative to the result in float32.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unamp._function_types import Function
from unamp.adapter.framework_types import Tensor
from unamp.adapter.kept_calls import KEPT_DTYPES, LIMIT, RESULT
from unamp.adapter.operations import Operations
from unamp.adapter.records import Call, OpRecord
from unamp.adapter.registry import adapter_for
from unamp.adapter.shadowing import said
from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp.errors import AmpWarning, FrameworkNotSupported, shortened
from unamp.regions import autocast
from unamp.tracing.comparing import bound_of, check_traces, finite
from unamp.tracing.recording import Trace
from unamp.tracing.tables import place, text_table

if TYPE_CHECKING:
    import numpy as np

#: The dtypes of the exact result: the first in which the framework has the operation.
_EXACT = ("float64", FLOAT32)
#: The factor that makes a float32 number one that float32 cannot hold. It is below 1, so that the
#: number stays in the domain of a function that ends at 1.
_BETWEEN = 1 - 2.0**-40
#: The largest error, as a multiple of the error of the replay in the same dtype.
_AS_GOOD = 4.0

Arrays = Mapping[str, "np.ndarray"]


class Replayed(NamedTuple):
    """An operation's result, compared with the exact one.

    Attributes:
        dtype: the dtype that it was computed in.
        error: the largest difference from the exact result, relative to its largest magnitude.
            Infinite where only the exact result is finite; None where nothing was computed.
        finite: the share of the result's numbers that are finite.
        failed: the reason why it could not be computed; empty where it was.
    """

    dtype: str
    error: float | None
    finite: float
    failed: str = ""


class Replay(NamedTuple):
    """The findings of `replay`.

    Attributes:
        record: the operation.
        framework: the framework of the replay.
        rows: the results in each dtype, float64 first.
        original: the result in the run that was traced.
        bound: the error that `original` may have: the error that its precision explains (see
            `compare_traces`), or four times the error of the replay in the same dtype, whichever is
            larger. The error of the exact result itself is added.
        exact: the dtype of the exact result: float64, or float32 where float64 cannot be computed.
    """

    record: OpRecord
    framework: str
    rows: tuple[Replayed, ...]
    original: Replayed
    bound: float
    exact: str = _EXACT[0]

    @property
    def within(self) -> bool:
        """Return whether the error of the recorded result is within the bound."""
        return self.original.error is not None and self.original.error <= self.bound

    def table(self) -> str:
        """Return the results as plain text, with the verdict below."""
        head = ("computed in", "where", "largest error", "finite")
        named = [(row, f"{self.framework}, again") for row in self.rows]
        rows = [
            _row(row, where)
            for row, where in ((self.original, f"{self.record.framework}, in the run"), *named)
        ]
        what = place(self.record.op, self.record.layer)
        assert self.original.error is not None
        how = f"error {self.original.error:.2e}, allowed {self.bound:.2e}"
        verdict = (
            "is what the operation gives" if self.within else "is not what the operation gives"
        )
        failed = [f"{row.dtype}: {row.failed}" for row in self.rows if row.failed]
        return "\n".join(
            [
                text_table(head, rows),
                *failed,
                f"{what}: the result of the run {verdict} from its inputs: {how}",
            ]
        )

    def to_data(self) -> dict[str, Any]:
        """Return the findings as plain values, for JSON."""
        said = {"op": self.record.op, "layer": self.record.layer, "native": self.record.native}
        rows = [{**row._asdict(), "error": finite(row.error)} for row in self.rows]
        return {
            **said,
            "framework": self.framework,
            "within": self.within,
            "bound": self.bound,
            "exact": self.exact,
            "original": {
                **self.original._asdict(),
                "error": finite(self.original.error),
                "framework": self.record.framework,
            },
            "rows": rows,
        }


def replay(
    trace: Trace, number: int, folder: str | Path, *, framework: str | None = None
) -> Replay:
    """Run one operation of a trace again, alone, on its recorded inputs, and return the results.

    The operation runs in float64, in float32, and in each low dtype in a region that allows it. The
    framework must be imported. Its adapter's namespace of operations is used, which may change the
    precision of PyTorch's matrix products: use a process of its own, as ``unamp replay`` does.

    Args:
        trace: a trace that was opened with ``keep=``.
        number: the number of the operation; the first is 1.
        folder: the folder with the files of the trace.
        framework: the import name of the framework to use; where not given, the framework of the
            record.

    Raises:
        ValueError: where the trace has no such operation, or did not keep it, or the framework
            cannot run it in float32; and for a damaged file.
        FrameworkNotSupported: where the framework is not imported, or not suitable.
    """
    check_traces(trace=trace)
    if (
        isinstance(number, bool)
        or not isinstance(number, int)
        or not 1 <= number <= len(trace.records)
    ):
        raise ValueError(
            f"there is no operation {shortened(number)}; the trace has 1 to {len(trace.records)}"
        )
    record = trace.records[number - 1]
    named = f"operation {number} ({record.op})"
    if record.call is None:
        raise ValueError(f"{named} kept no inputs; open the trace with unamp.trace(keep=folder)")
    if record.call.left_out:
        raise ValueError(f"{named} was not kept: {record.call.left_out}")
    arrays = _load(Path(folder), record.call)
    if RESULT not in arrays:
        raise ValueError(f"{named} has no floating result to compare")
    found = framework or record.framework
    operations = adapter_for(found).operations()
    try:
        function = operations[record.op]
    except KeyError:
        raise ValueError(
            f"{found} has no {record.op}; it has {len(operations.names())} other operations"
        ) from None
    call = _Again(operations, function, record.op, record.call, arrays)
    exact, failed = _exact(call, f"{named} cannot run in {found}")
    dtypes = (*_EXACT, *LOW_DTYPES)[len(failed) :]
    own = arrays[RESULT].astype(_EXACT[0])
    if own.shape != exact.shape:
        raise ValueError(
            f"{named} has a result of shape {own.shape}, in {found} it is {exact.shape}"
        )
    rows = [
        *failed,
        Replayed(dtypes[0], 0.0, _finite_share(exact)),
        *(call.row(dtype, exact) for dtype in dtypes[1:]),
    ]
    own_dtype = record.computed_in or FLOAT32
    here = max(
        (row.error for row in rows if row.dtype == own_dtype and row.error is not None), default=0.0
    )
    allowed = max(bound_of(own_dtype), _AS_GOOD * here if math.isfinite(here) else 0.0)
    if failed:
        allowed += bound_of(dtypes[0])
    original = Replayed(own_dtype, _error(own, exact), _finite_share(own))
    return Replay(record, found, tuple(rows), original, allowed, dtypes[0])


def _exact(call: _Again, cannot: str) -> tuple[np.ndarray, list[Replayed]]:
    """Return the exact result, and the rows of the dtypes that failed before it.

    Raises:
        ValueError: where all dtypes failed; its message begins with `cannot`.
        FrameworkNotSupported: where the framework cannot be used in this process.
    """
    failed: list[Replayed] = []
    for dtype in _EXACT:
        try:
            result = call.run(dtype)
            if dtype != FLOAT32:
                call.check_exact(result)
            return result, failed
        except FrameworkNotSupported:  # another dtype would fail, too
            raise
        except Exception as error:  # a framework may raise anything
            failed.append(Replayed(dtype, None, 0.0, said(error)))
    raise ValueError("; ".join([cannot, *(f"in {row.dtype}: {row.failed}" for row in failed)]))


@dataclass(frozen=True)
class _Again:
    """A recorded call that can be run again.

    Attributes:
        operations: the framework's namespace.
        function: the operation in that namespace.
        op: the operation's canonical name.
        call: the recorded call.
        arrays: the tensors of the call.
    """

    operations: Operations
    function: Function
    op: str
    call: Call
    arrays: Arrays

    def row(self, dtype: str, exact: np.ndarray) -> Replayed:
        """Return the result in a dtype, compared with the exact one."""
        try:
            result = self.run(dtype)
        except Exception as error:
            return Replayed(dtype, None, 0.0, said(error))
        if result.shape != exact.shape:
            return Replayed(dtype, None, 0.0, f"its result has another shape, {result.shape}")
        return Replayed(dtype, _error(result, exact), _finite_share(result))

    def run(self, dtype: str) -> np.ndarray:
        """Return the first floating result, computed in `dtype`, as a float64 array.

        A low dtype is computed in a region that allows the operation.
        """
        low = dtype in LOW_DTYPES
        args, kwargs = (
            self._decode(each, FLOAT32 if low else dtype)
            for each in (self.call.args, self.call.kwargs)
        )
        if low:
            with warnings.catch_warnings():
                # the speed of a low dtype does not matter for one operation
                warnings.simplefilter("ignore", AmpWarning)
                with autocast(level="OD", dtype=dtype, allow=[self.op]):
                    result = self.function(*args, **kwargs)
        else:
            result = self.function(*args, **kwargs)
        first = next(self._floating(result), None)
        if first is None:
            raise ValueError("it gives no floating result")
        if (made := self.operations.dtype(first)) != dtype:
            raise ValueError(f"it gives {made} there")
        return self.operations.numpy(first).astype(_EXACT[0])

    def check_exact(self, result: np.ndarray) -> None:
        """Check that a float64 result was computed in float64: some kernels compute in float32.

        If float32 holds the result of inputs that float32 cannot hold, the kernel computed in
        float32.

        Raises:
            ValueError: where it did.
        """
        if not _held_in_float32(result):
            return
        between = {
            name: array.astype(_EXACT[0]) * _BETWEEN if "float" in array.dtype.name else array
            for name, array in self.arrays.items()
        }
        if _held_in_float32(replace(self, arrays=between).run(_EXACT[0])):
            raise ValueError(f"it computes in {FLOAT32} there")

    def _decode(self, value: object, dtype: str) -> Any:
        if isinstance(value, dict) and value.keys() == {"tensor"}:
            array = self.arrays[str(value["tensor"])]
            return self.operations.tensor(
                array.astype(dtype) if "float" in array.dtype.name else array
            )
        if isinstance(value, dict) and value.keys() == {"number"}:
            return float(value["number"])
        if isinstance(value, Mapping):
            return {name: self._decode(each, dtype) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return tuple(self._decode(each, dtype) for each in value)
        return value

    def _floating(self, result: object) -> Iterator[Tensor]:
        if isinstance(result, (list, tuple)):
            for each in result:
                yield from self._floating(each)
        elif hasattr(result, "dtype") and "float" in self.operations.dtype(result):
            yield result


def _load(folder: Path, call: Call) -> Arrays:
    """Return the tensors of a call, from its file in the folder of the trace.

    Raises:
        ValueError: for a file that is missing, outside of the folder, too large, or not as the
            record says.
    """
    try:
        import ml_dtypes
        import numpy as np
        from safetensors import SafetensorError, deserialize
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"to replay takes {error.name}; pip install 'unamp[replay]'", name=error.name
        ) from error
    path = folder / call.file
    try:
        # a name without a folder may still be a link to a file elsewhere
        if path.resolve(strict=True).parent != folder.resolve() or not path.is_file():
            raise ValueError(f"{path}: is no file of this folder")
        if (size := path.stat().st_size) > 2 * LIMIT:
            raise ValueError(
                f"{path}: has {size} bytes; a call of more than {2 * LIMIT} is not read"
            )
        parts = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise ValueError(f"{path}: no file of safetensors: {error}") from error
    arrays = {}
    for name, part in parts:
        dtype = _DTYPES.get(str(part["dtype"]))
        if dtype is None:
            raise ValueError(
                f"{path}: {shortened(name, 20)} has the dtype {part['dtype']}; "
                f"valid: {', '.join(_DTYPES)}"
            )
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        arrays[name] = np.frombuffer(bytes(part["data"]), kind).reshape(part["shape"])
    wanted = {str(n) for n in range(_tensors([call.args, call.kwargs]))}
    if arrays.keys() - {RESULT} != wanted:
        raise ValueError(f"{path}: does not hold the {len(wanted)} tensors that the record names")
    return arrays


#: Our name of each dtype that is kept, by the name in safetensors.
_DTYPES = {
    {"bool": "BOOL", "bfloat16": "BF16"}.get(
        name, f"{name[0].upper()}{''.join(c for c in name if c.isdigit())}"
    ): name
    for name in KEPT_DTYPES
}


def _tensors(value: object) -> int:
    """Return the number of tensors in the arguments of a call."""
    if isinstance(value, Mapping):
        return 1 if value.keys() == {"tensor"} else sum(map(_tensors, value.values()))
    return sum(map(_tensors, value)) if isinstance(value, (list, tuple)) else 0


def _error(result: np.ndarray, exact: np.ndarray) -> float:
    import numpy as np

    both = np.isfinite(result) & np.isfinite(exact)
    if not np.array_equal(np.isfinite(exact), both):
        return math.inf
    if not both.any():
        return 0.0
    largest = float(np.abs(exact[both]).max())
    apart = float(np.abs(result[both] - exact[both]).max())
    return apart / largest if largest else math.inf if apart else 0.0


def _held_in_float32(result: np.ndarray) -> bool:
    """Return whether float32 holds a result's numbers; False where all are whole.

    Whole numbers prove nothing: float32 also holds the whole numbers of a float64 kernel.
    """
    import numpy as np

    numbers = result[np.isfinite(result)]
    with np.errstate(over="ignore"):
        held: bool = np.array_equal(numbers, numbers.astype(FLOAT32))
    return held and not np.array_equal(numbers, np.rint(numbers))


def _finite_share(result: np.ndarray) -> float:
    import numpy as np

    return float(np.isfinite(result).mean()) if result.size else 1.0


def _row(row: Replayed, where: str) -> tuple[str, ...]:
    error = "-" if row.error is None else "0" if row.error == 0 else f"{row.error:.2e}"
    return row.dtype, where, error, "-" if row.failed else f"{row.finite:.1%}"
