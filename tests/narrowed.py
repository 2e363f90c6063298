"""`float32_results` on every framework: a function that computes low returns float32.

Each framework's folder imports the test. `WAYS` of its module run the function, eagerly and
compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unamp
from unamp.adapter.registry import adapter_for


def test_float32_leaves_a_function_that_computes_low(
    request: pytest.FixtureRequest, framework: str
) -> None:
    ops = adapter_for(framework).operations()
    matmul, weight = ops["matmul"], ops.tensor(np.full((4, 4), 1 + 2.0**-12, np.float32))

    @unamp.float32_results
    @unamp.autocast(dtype="bfloat16")
    def predict(x):  # type: ignore[no-untyped-def]
        return {"y": matmul(x, weight)}

    for way in request.module.WAYS:
        run = way(predict)

        def total(x: Any, run: Any = run) -> Any:
            return ops["sum"](run(x)["y"])

        x = ops.tensor(np.ones((2, 4), np.float32), requires_grad=True)
        value, (gradient,) = ops.value_and_grad(total, [x])
        assert (ops.dtype(run(x)["y"]), ops.dtype(gradient)) == ("float32", "float32")
        assert float(value) == 32.0  # bfloat16 has rounded the weight to one
