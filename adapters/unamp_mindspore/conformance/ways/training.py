"""Training steps by MindSpore's own cells and `Model`: a function's scalar, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, nn, ops
from mindspore.train import Model

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp_mindspore.casting import cast
from unamp_mindspore.conformance.ways.graphs import READS
from unamp_mindspore.conformance.ways.opening import RECORDS, Holding, graph_mode, inside
from unamp_mindspore.state import FLOAT32, thread

#: Computes a function's scalar and its gradients, and opens no region.
Steps = Callable[[Function, Sequence[Any], Sequence[int]], tuple[Any, Sequence[Any]]]


def _value_and_grad(
    function: Function, inputs: Sequence[Any], places: Sequence[int], *, jitted: bool = False
) -> tuple[Any, Sequence[Any]]:
    differentiated = mindspore.value_and_grad(function, tuple(places))
    value, gradients = (mindspore.jit(differentiated) if jitted else differentiated)(*inputs)
    return value, gradients if isinstance(gradients, tuple) else (gradients,)


def _value_and_grad_of_cell(
    function: Function, inputs: Sequence[Any], places: Sequence[int]
) -> tuple[Any, Sequence[Any]]:
    return _value_and_grad(Holding(function), inputs, places)


def _parameter(tensor: Any, name: str) -> Any:
    """Return a parameter with a tensor's values.

    It is made from float32: with NumPy 2, MindSpore makes none from a bfloat16 tensor.
    """
    made = Parameter(cast(tensor, FLOAT32), name=name)
    made.set_dtype(tensor.dtype)
    return made


class _Weighed(nn.Cell):  # type: ignore[misc]
    """A network whose parameters are some of a function's arguments; it holds the others.

    It is called with a number.
    """

    def __init__(self, function: Function, inputs: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__()
        self.function, self.count = function, len(inputs)
        self.weights = ParameterTuple([_parameter(inputs[place], f"p{place}") for place in places])
        others = [place for place in range(len(inputs)) if place not in places]
        self.others = tuple(inputs[place] for place in others)
        self.is_weight = tuple(place in places for place in range(len(inputs)))
        self.index = tuple(
            (list(places) if place in places else others).index(place)
            for place in range(len(inputs))
        )

    def construct(self, number):  # type: ignore[no-untyped-def]
        given = ()
        for place in range(self.count):
            if self.is_weight[place]:
                given += (self.weights[self.index[place]],)  # type: ignore[assignment]
            else:
                given += (self.others[self.index[place]],)  # type: ignore[assignment]
        return self.function(*given)


class _Keeping(nn.Optimizer):  # type: ignore[misc]
    """An optimizer that stores the gradients and changes nothing.

    It stores them in float32, since MindSpore assigns no bfloat16 on a CPU.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        super().__init__(1.0, parameters)
        zeros = [
            Parameter(ops.zeros(each.shape, FLOAT32), name=f"kept.{each.name}")
            for each in parameters
        ]
        self.kept, self.dtypes = ParameterTuple(zeros), [each.dtype for each in parameters]

    def construct(self, gradients):  # type: ignore[no-untyped-def]
        for place in range(len(self.kept)):
            ops.assign(self.kept[place], ops.cast(gradients[place], FLOAT32))
        return True

    def gradients(self) -> list[Any]:
        """Return the gradients of the last step."""
        return [cast(kept, dtype) for kept, dtype in zip(self.kept, self.dtypes, strict=True)]


def _made(
    function: Function, inputs: Sequence[Any], places: Sequence[int]
) -> tuple[_Weighed, _Keeping]:
    """Return a network and its optimizer; a trace does not see the making of these."""
    sink, thread.sink = thread.sink, None
    try:
        network = _Weighed(function, inputs, places)
        return network, _Keeping(network.weights)
    finally:
        thread.sink = sink


def _train_step(
    function: Function, inputs: Sequence[Any], places: Sequence[int]
) -> tuple[Any, Sequence[Any]]:
    network, optimizer = _made(function, inputs, places)
    loss = nn.TrainOneStepCell(network, optimizer)(ops.ones((1,)))
    return loss, optimizer.gradients()


class _Losses(mindspore.train.Callback):  # type: ignore[misc]
    """Keeps the loss of the last step."""

    def step_end(self, run_context: Any) -> None:
        """Keep the loss."""
        self.loss = run_context.original_args().net_outputs


def _model(
    function: Function, inputs: Sequence[Any], places: Sequence[int]
) -> tuple[Any, Sequence[Any]]:
    (network, optimizer), losses = _made(function, inputs, places), _Losses()
    data = mindspore.dataset.NumpySlicesDataset(np.ones((1, 1), np.float32))
    Model(network, optimizer=optimizer).train(1, data, callbacks=losses, dataset_sink_mode=False)
    return losses.loss, optimizer.gradients()


def _around(
    steps: Steps,
    function: Function,
    region: OpenRegion,
    inputs: Sequence[Any],
    places: Sequence[int],
    *,
    compiled: bool = False,
) -> tuple[Any, Sequence[Any]]:
    with region(), graph_mode() if compiled else nullcontext():
        return steps(function, inputs, places)


def _inside(
    steps: Steps,
    function: Function,
    region: OpenRegion,
    inputs: Sequence[Any],
    places: Sequence[int],
) -> tuple[Any, Sequence[Any]]:
    return steps(inside(function, region), inputs, places)


_GRAPH: dict[str, Any] = {"equal": "bound", "upstream": READS}

WAYS = (
    Way(
        "value_and_grad, region inside", "transformed",
        value_and_grad=partial(_inside, _value_and_grad), upstream=RECORDS,
    ),
    Way(
        "value_and_grad, region around", "transformed",
        value_and_grad=partial(_around, _value_and_grad), upstream=RECORDS,
    ),
    Way(
        "TrainOneStepCell", "transformed",
        value_and_grad=partial(_around, _train_step), upstream=RECORDS,
    ),
    Way("Model.train", "transformed", value_and_grad=partial(_around, _model), upstream=RECORDS),
    Way(
        "jit of value_and_grad", "transformed",
        value_and_grad=partial(_around, partial(_value_and_grad, jitted=True)), **_GRAPH,
    ),
    Way(
        "GRAPH_MODE, value_and_grad", "transformed",
        value_and_grad=partial(_around, _value_and_grad_of_cell, compiled=True), **_GRAPH,
    ),
    Way(
        "GRAPH_MODE, TrainOneStepCell", "transformed",
        value_and_grad=partial(_around, _train_step, compiled=True), **_GRAPH,
    ),
    Way(
        "GRAPH_MODE, Model.train", "transformed",
        value_and_grad=partial(_around, _model, compiled=True), dear=True, **_GRAPH,
    ),
)  # fmt: skip
