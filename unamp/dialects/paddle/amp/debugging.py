"""`paddle.amp.debugging`: how often each operation ran, by dtype, and where a result is not finite.

The operations that `unamp.trace` records are counted and checked, in every framework: the forward
pass, by canonical names and layers; a trace tells more. Paddle's page:
https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/Overview_en.html
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

import unamp
from unamp.adapter import OpRecord
from unamp.adapter.registry import owner
from unamp.dialects._in_use import framework_in_use
from unamp.dtypes import PRECISIONS
from unamp.lists import operation_name
from unamp.regions import innermost_region, open_regions

__all__ = [
    "DebugMode",
    "OperatorStats",
    "TensorCheckerConfig",
    "check_layer_numerics",
    "check_numerics",
    "collect_operator_stats",
    "compare_accuracy",
    "disable_operator_stats_collection",
    "disable_tensor_checker",
    "enable_operator_stats_collection",
    "enable_tensor_checker",
]

TraceT = TypeVar("TraceT", bound=unamp.Trace)
Given = TypeVar("Given")

_COLUMNS = ("float16", "bfloat16", "float32", "other")

#: How often each operation computed in ``"float16"``, ``"bfloat16"``, ``"float32"`` and
#: ``"other"``, by its canonical name.
OperatorStats = dict[str, dict[str, int]]

_LARGEST = PRECISIONS["float16"].largest


class _ThreadTrace(threading.local, Generic[TraceT]):
    """The trace that each thread has open, if any; one call opens it and another closes it."""

    _trace: TraceT | None = None
    _within: tuple[object, ...] = ()

    def open(self, trace: TraceT) -> None:
        """Open a trace in this thread."""
        self._within = open_regions(), innermost_region()
        trace.__enter__()
        self._trace = trace

    def close(self) -> TraceT | None:
        """Close this thread's trace and return it; None where none is open.

        Raises:
            RuntimeError: in another region than that in which it was opened; the trace stays open.
        """
        trace = self._trace
        if trace is None:
            return None
        if self._within != (open_regions(), innermost_region()):
            raise RuntimeError(
                "this was enabled outside of the region that is open now, or inside of one that is "
                "closed; disable it where it was enabled: both before the region, "
                "or both inside of it"
            )
        trace.__exit__(None, None, None)
        self._trace = None
        return trace


_counting = _ThreadTrace[unamp.Trace]()


def enable_operator_stats_collection() -> None:
    """Start to count this thread's operations by the dtypes that they compute in.

    Earlier counts are forgotten. It counts what `unamp.trace` records: every operation that
    computes, under its canonical name, but no casts.
    """
    _counting.close()
    _counting.open(unamp.trace())


def disable_operator_stats_collection() -> OperatorStats:
    """Stop counting, print the table, and return it as data; Paddle's returns nothing.

    Where nothing is counted nothing is printed.

    Raises:
        RuntimeError: in another region than that in which it was enabled.
    """
    trace = _counting.close()
    if trace is None:
        return {}
    stats = _counted(trace.records)
    _print(stats)
    return stats


@contextmanager
def collect_operator_stats() -> Iterator[OperatorStats]:
    """Count the operations inside and print the table at the end.

    After that, ``as stats`` holds the counts as data.
    """
    stats: OperatorStats = {}
    enable_operator_stats_collection()
    try:
        yield stats
    except BaseException:
        _counting.close()
        raise
    stats.update(disable_operator_stats_collection())


def _counted(records: Iterable[OpRecord]) -> OperatorStats:
    stats: OperatorStats = {}
    for record in records:
        column = record.compute if record.compute in _COLUMNS else "other"
        counts = stats.setdefault(record.op, dict.fromkeys(_COLUMNS, 0))
        counts[str(column)] += 1
    return dict(sorted(stats.items()))


def _print(stats: OperatorStats) -> None:
    """Print the table in Paddle's form."""
    print("<{:-^120}>".format(" op list "))
    print(
        "<{:-^40}".format(" Op Name "),
        "{:-^17}".format(" FP16 Calls "),
        "{:-^17}".format(" BF16 Calls "),
        "{:-^17}".format(" FP32 Calls"),
        "{:-^17}>".format(" Other Calls "),
        sep=" | ",
    )
    for op, counts in stats.items():
        print(f"  {op:<40}|  " + "|  ".join(f"{counts[column]:<17}" for column in _COLUMNS))
    print("<{:-^120}>\n".format(f" op count: {len(stats)} "))


class DebugMode(Enum):
    """The results that are reported, and whether the program goes on."""

    CHECK_NAN_INF_AND_ABORT = 0
    CHECK_NAN_INF = 1
    CHECK_ALL_FOR_OVERFLOW = 2
    CHECK_ALL = 3


class TensorCheckerConfig:
    """The results that are checked, and what is done about them; see Paddle's own. No seed is set.

    Args:
        enable: False checks nothing.
        debug_mode: one of `DebugMode`, or of Paddle's.
        output_dir: a folder for a trace of what was checked, which `compare_accuracy` reads; None
            prints only.
        checked_op_list: the operations to check, by any spelling; None is every one.
        skipped_op_list: operations to leave out.
        debug_step: the first step that is checked, and the first one after that which is not; a
            step is a call of `enable_tensor_checker`.
        stack_height_limit: has no effect: the error that aborts is raised at the operation's call.

    Raises:
        ValueError: for a value that is no list or tuple, and for unknown operations and modes.
        AssertionError: for a `debug_step` other than two growing numbers.
    """

    current_step_id = 0

    def __init__(
        self,
        enable: bool,
        debug_mode: Any = DebugMode.CHECK_NAN_INF_AND_ABORT,
        output_dir: str | None = None,
        checked_op_list: Sequence[str] | None = None,
        skipped_op_list: Sequence[str] | None = None,
        debug_step: Sequence[int] | None = None,
        stack_height_limit: int = 1,
    ) -> None:
        self.enable = enable
        self.debug_mode = _mode(debug_mode)
        self.output_dir = output_dir
        self.checked_op_list = checked_op_list
        self.skipped_op_list = skipped_op_list
        self.debug_step = _listed("debug_step", debug_step)
        self.stack_height_limit = stack_height_limit
        self._checked = _operations("checked_op_list", checked_op_list)
        self._skipped = _operations("skipped_op_list", skipped_op_list) or frozenset()
        self.start_step: int | None = None
        self.end_step: int | None = None
        if self.debug_step is not None:
            if len(self.debug_step) != 2 or self.debug_step[1] <= self.debug_step[0]:
                raise AssertionError(
                    "debug_step should be [first, end], the end above the first, "
                    f"not {self.debug_step!r}"
                )
            self.start_step, self.end_step = max(self.debug_step[0], 0), self.debug_step[1]

    def update_and_check_step_id(self) -> bool:
        """Return whether the step that begins is one to check, and count it."""
        if not self.enable:
            return False
        if self.start_step is None or self.end_step is None:
            return True
        if not self.start_step <= TensorCheckerConfig.current_step_id < self.end_step:
            return False
        TensorCheckerConfig.current_step_id += 1
        return True

    def start_check_nan_inf(self) -> None:
        """Check this thread's operations from here on."""
        if self.enable:
            disable_tensor_checker()
            _checking.open(_Checking(self))

    def stop_check_nan_inf(self) -> None:
        """Check no more; see `disable_tensor_checker`."""
        disable_tensor_checker()

    def is_about(self, op: str) -> bool:
        """Return whether an operation is one to check."""
        return op not in self._skipped and (self._checked is None or op in self._checked)


class _Checking(unamp.Trace):
    """A trace that reports each result at once."""

    _numbers = itertools.count()

    def __init__(self, config: TensorCheckerConfig) -> None:
        super().__init__(values=True)
        self._config = config

    def _take(self, record: OpRecord) -> None:
        before = len(self.records)
        super()._take(record)
        taken, config = self.records[before:], self._config
        if config.output_dir is None or not config.is_about(record.op):
            del self.records[before:]  # a long run must not fill the memory
        if taken and config.is_about(record.op):
            _tell(taken[0], config.debug_mode)

    def write(self) -> None:
        """Write the trace as JSON, where it is wanted."""
        if self._config.output_dir is not None:
            folder = Path(self._config.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            name = f"worker_{os.getpid()}.{next(self._numbers)}.json"
            (folder / name).write_text(self.to_json(), "utf-8")


_checking = _ThreadTrace[_Checking]()


def enable_tensor_checker(checker_config: TensorCheckerConfig) -> None:
    """Check the results of this thread's operations from here on, where the step is one to check.

    Gradients are not looked at: `unamp.GradScaler.first_nonfinite` names a parameter whose gradient
    is not finite.

    Raises:
        RuntimeError: in another region than that in which it was enabled before.
    """
    if checker_config.update_and_check_step_id():
        checker_config.start_check_nan_inf()
    else:
        checker_config.stop_check_nan_inf()


def disable_tensor_checker() -> None:
    """Check no more, and write the trace where it is wanted. Do nothing where nothing is checked.

    Raises:
        RuntimeError: in another region than that in which it was enabled.
    """
    if (checking := _checking.close()) is not None:
        checking.write()


def check_layer_numerics(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a layer's ``forward``, so that a result in it that is not finite raises.

    Raises:
        RuntimeError: for a call without arguments, or whose first is no tensor; and for NaN and
            infinities.
    """

    @functools.wraps(func)
    def wrapper(self: object, *args: Any, **kwargs: Any) -> Any:
        if not args:
            raise RuntimeError("No elements found in args.")
        if owner(args[0], "tensor") is None:
            raise RuntimeError("First input of this layer must be tensor.")
        with _Checking(TensorCheckerConfig(True)):
            return func(self, *args, **kwargs)

    return wrapper


def _tell(record: OpRecord, mode: DebugMode) -> None:
    """Print the verdict about a result, and raise an error where it must stop the program."""
    values = record.values
    if values is None:
        return
    overflow = (
        mode is DebugMode.CHECK_ALL_FOR_OVERFLOW
        and record.output == "float32"
        and values.max_abs > _LARGEST
    )
    if not (values.nonfinite or overflow or mode is DebugMode.CHECK_ALL):
        return
    place = (
        f"framework={record.framework}, op={record.op}, layer={record.layer}, dtype={record.output}"
    )
    found = (
        f"numel={math.prod(values.shape)}, nonfinite={values.nonfinite}, "
        f"max_abs={values.max_abs:.6e}, mean={values.mean:.6e}"
    )
    print(f"[PRECISION] {'[ERROR] ' if values.nonfinite or overflow else ''}in [{place}], {found}")
    if values.nonfinite and mode is DebugMode.CHECK_NAN_INF_AND_ABORT:
        raise RuntimeError(f"There are NAN or INF ({values.nonfinite} of them) in [{place}].")


def _mode(given: object) -> DebugMode:
    name = str(getattr(given, "name", None))
    if name not in DebugMode.__members__:
        raise ValueError(
            f"debug_mode should be one of DebugMode ({', '.join(DebugMode.__members__)}), "
            f"not {given!r}"
        )
    return DebugMode[name]


def _listed(argument: str, given: Given) -> Given:
    if given is not None and not isinstance(given, (list, tuple)):
        raise ValueError(f"{argument} must be list or tuple, not {given!r}")
    return given


def _operations(argument: str, given: Any) -> frozenset[str] | None:
    listed = _listed(argument, given)
    return (
        None
        if listed is None
        else frozenset(operation_name(argument, each, "paddle") for each in listed)
    )


def check_numerics(
    tensor: Any, op_type: str, var_name: str, debug_mode: Any = DebugMode.CHECK_NAN_INF_AND_ABORT
) -> Any:
    """Return the counts of NaN, infinities and zeros in a Paddle tensor, and its max, min and mean.

    Raises:
        TypeError: for another framework's tensor; `unamp.trace(values=True)` tells of its results.
        RuntimeError: where there are NaN or infinities and the mode says to abort.
    """
    paddle = framework_in_use("paddle")
    if paddle is None or not isinstance(tensor, paddle.Tensor):
        raise TypeError(
            f"check_numerics takes tensors of PaddlePaddle, not {type(tensor).__name__}: "
            "unamp.trace(values=True) tells of the results of operations in every framework"
        )
    own = paddle.amp.debugging
    return own.check_numerics(tensor, op_type, var_name, own.DebugMode[debug_mode.name])


def compare_accuracy(
    dump_path: str,
    another_dump_path: str,
    output_filename: str,
    loss_scale: float = 1,
    dump_all_tensors: bool = False,
) -> None:
    """Write a table that compares two runs, the largest error first; see `unamp.compare_traces`.

    Args:
        dump_path: the `output_dir` of one run, in float32, say.
        another_dump_path: the `output_dir` of the other run.
        output_filename: the file to write, as text; Paddle's writes a workbook.
        loss_scale: has no effect: the traces hold no gradients.
        dump_all_tensors: must be False, as in Paddle.

    Raises:
        AssertionError: for `dump_all_tensors`.
        FileNotFoundError: where a folder holds no trace of `enable_tensor_checker`.
    """
    assert dump_all_tensors is False, "It is currently not supported."
    reference, other = (_loaded(Path(path)) for path in (dump_path, another_dump_path))
    found = unamp.compare_traces(reference, other)
    Path(output_filename).write_text(found.table() + "\n", "utf-8")


def _loaded(folder: Path) -> unamp.Trace:
    """Return all that a run wrote into a folder, as one trace."""
    paths = sorted(folder.glob("worker_*.json"), key=lambda path: int(path.suffixes[0][1:]))
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no worker_*.json, which disable_tensor_checker() writes for "
            "TensorCheckerConfig(output_dir=...)"
        )
    traces = [unamp.Trace.from_json(path.read_text("utf-8")) for path in paths]
    traces[0].records = [record for trace in traces for record in trace.records]
    return traces[0]
