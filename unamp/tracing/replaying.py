"""Replay of one recorded operation on its own inputs: in float64, float32 and low.

It runs alone, in any framework. Some frameworks have no kernels in float64 for some operations, or
kernels that take float64 and compute in float32. There, the other results are compared with
float32.
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

#: What errors are relative to: the first of these in which the framework has the operation.
_EXACT = ("float64", FLOAT32)
#: Makes a number of float32's one that float32 cannot hold, and leaves it in the domain of a
#: function that ends at 1.
_BETWEEN = 1 - 2.0**-40
#: How many times as large as that of the replay in the same dtype an error may be.
_AS_GOOD = 4.0

Arrays = Mapping[str, "np.ndarray"]


class Replayed(NamedTuple):
    """An operation's result, beside the exact one.

    Attributes:
        dtype: the dtype that it was computed in.
        error: the largest difference to the exact result, relative to its largest magnitude;
            infinite where a number is finite there alone. None where it could not be computed.
        finite: the share of its numbers that are finite.
        failed: why it could not be computed; empty where it was.
    """

    dtype: str
    error: float | None
    finite: float
    failed: str = ""


class Replay(NamedTuple):
    """The findings of `replay`.

    Attributes:
        record: the operation.
        framework: the framework that it ran in again.
        rows: its results in each dtype, float64 first.
        original: its result in the run that was traced.
        bound: the error that is allowed to that: what the precision it computed in explains (see
            `compare_traces`), or four times the error here in the same precision, where that is
            more. What the exact result itself may be off is added.
        exact: the dtype of the result that errors are relative to: float64, or float32 where that
            cannot be computed.
    """

    record: OpRecord
    framework: str
    rows: tuple[Replayed, ...]
    original: Replayed
    bound: float
    exact: str = _EXACT[0]

    @property
    def within(self) -> bool:
        """Return whether the recorded result is right, as far as its precision goes."""
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
        """Return the same as plain values, for JSON."""
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
    """Run one operation of a trace again, alone, on the inputs that it had, and return its results.

    It runs in float64, in float32, and in each low dtype under a region that allows it. The
    framework must be imported. This asks for the adapter's namespace of operations, which may set
    what PyTorch computes matrix products in: use a process of its own, as ``unamp replay`` does.

    Args:
        trace: a trace that was opened with ``keep=``.
        number: the number of the operation; the first is 1.
        folder: the folder with the files of the trace.
        framework: the import name of the framework that it runs in; the one that it ran in unless
            said.

    Raises:
        ValueError: where there is no such operation, where it was not kept, or cannot run there in
            float32; and for a file that is damaged.
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
    """Return the result that others are compared with, and the rows of the dtypes that failed.

    Raises:
        ValueError: where there is none at all; its message begins with `cannot`.
        FrameworkNotSupported: where the framework cannot have it in this process.
    """
    failed: list[Replayed] = []
    for dtype in _EXACT:
        try:
            result = call.run(dtype)
            if dtype != FLOAT32:
                call.check_exact(result)
            return result, failed
        except FrameworkNotSupported:  # nor would it be in another dtype
            raise
        except Exception as error:  # a framework raises what it likes
            failed.append(Replayed(dtype, None, 0.0, said(error)))
    raise ValueError("; ".join([cannot, *(f"in {row.dtype}: {row.failed}" for row in failed)]))


@dataclass(frozen=True)
class _Again:
    """Runs a kept call.

    Attributes:
        operations: the framework's namespace.
        function: the operation in it.
        op: its canonical name.
        call: the call.
        arrays: the tensors of the call.
    """

    operations: Operations
    function: Function
    op: str
    call: Call
    arrays: Arrays

    def row(self, dtype: str, exact: np.ndarray) -> Replayed:
        """Return the result in a dtype beside the exact one."""
        try:
            result = self.run(dtype)
        except Exception as error:
            return Replayed(dtype, None, 0.0, said(error))
        if result.shape != exact.shape:
            return Replayed(dtype, None, 0.0, f"its result has another shape, {result.shape}")
        return Replayed(dtype, _error(result, exact), _finite_share(result))

    def run(self, dtype: str) -> np.ndarray:
        """Return the first floating result in float64.

        A low dtype is computed in a region that allows the operation.
        """
        low = dtype in LOW_DTYPES
        args, kwargs = (
            self._decode(each, FLOAT32 if low else dtype)
            for each in (self.call.args, self.call.kwargs)
        )
        if low:
            with warnings.catch_warnings():
                # the warning that a low dtype is slow here does not matter for one operation
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
        """Check that a float64 result was computed in float64; a kernel may compute in float32.

        From inputs that float32 cannot hold such a kernel gives numbers that it can, and another
        one others.

        Raises:
            ValueError: where it was not.
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
        ValueError: for a file that is not there, is not in the folder, is too large, or is not as
            the record says.
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
        # The name has no folder in it, but the file may be a link to somewhere else.
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


#: How safetensors calls the dtypes that are kept.
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

    Whole numbers say nothing: float32 holds those of a float64 kernel, too.
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
