"""Programs of PIR, built by hand in static mode and run by an `Executor`; saved and loaded, too."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way


def ways() -> Iterator[Way]:
    """Yield the ways of programs."""
    yield Way("program built by hand", "traced", _built, gradients=False)
    yield Way(
        "program built by hand, with its gradients",
        "traced",
        value_and_grad=_differentiated,
        equal="bound",
    )
    yield Way(
        "program saved by static.save_inference_model and loaded",
        "exported",
        _saved,
        gradients=False,
        equal="bound",
    )


@contextmanager
def _building(inputs: Sequence[Any]) -> Iterator[tuple[Any, Any, list[Any], dict[str, Any]]]:
    """Build a program that takes some inputs, on the device of the first.

    Yields the executor that runs it, the program, its values for the inputs, and its feed.
    """
    there = paddle.CUDAPlace(0) if inputs[0].place.is_gpu_place() else paddle.CPUPlace()
    executor, main = paddle.static.Executor(there), paddle.static.Program()
    given = {f"x{place}": tensor.detach() for place, tensor in enumerate(inputs)}
    feed = {name: tensor.numpy() for name, tensor in given.items()}
    paddle.enable_static()
    try:
        with paddle.static.program_guard(main, paddle.static.Program()):
            values = [
                paddle.static.data(name, tensor.shape, tensor.dtype)
                for name, tensor in given.items()
            ]
            for value in values:
                value.stop_gradient = False
            yield executor, main, values, feed
    finally:
        paddle.disable_static()


def _run(executor: Any, program: Any, feed: dict[str, Any], wanted: Sequence[Any]) -> list[Any]:
    return list(executor.run(program, feed=feed, fetch_list=list(wanted)))


def _tensor(array: Any) -> Any:
    """Return an array as a tensor: an array of bfloat16 numbers holds their bits, as integers."""
    if array.dtype != np.uint16:
        return paddle.to_tensor(array)
    return paddle.to_tensor((array.astype(np.uint32) << 16).view(np.float32)).astype("bfloat16")


def _built(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with _building(inputs) as (executor, main, values, feed):
        with region():
            result = function(*values)
        (found,) = _run(executor, main, feed, [result])
    return _tensor(found)


def _differentiated(
    function: Function, region: OpenRegion, inputs: Sequence[Any], places: Sequence[int]
) -> tuple[Any, list[Any]]:
    with _building(inputs) as (executor, main, values, feed):
        with region():
            result = function(*values)
        wanted = paddle.static.gradients([result], [values[place] for place in places])
        value, *gradients = _run(
            executor, main, feed, [result, *(each for each in wanted if each is not None)]
        )
    found = iter(map(_tensor, gradients))
    return _tensor(value), [None if each is None else next(found) for each in wanted]


def _saved(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with (
        _building(inputs) as (executor, main, values, feed),
        tempfile.TemporaryDirectory() as folder,
    ):
        with region():
            result = function(*values)
        path = str(Path(folder) / "saved")
        paddle.static.save_inference_model(path, values, [result], executor, program=main)
        program, _, wanted = paddle.static.load_inference_model(path, executor)
        (found,) = _run(executor, program, feed, wanted)
    return _tensor(found)
