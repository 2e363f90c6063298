"""Functions that change a tensor in place change the tensor itself, and no cast of it.

This holds under every rule.
"""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from unamp import Policy, policy_region

ROWS = np.array([0, 1, 1], "int32")


class Functions:
    """Functions that add new values to rows of a kept tensor."""

    @staticmethod
    def index_add(kept, rows, new):
        return ops.index_add(kept, rows, new, 0)

    @staticmethod
    def scatter_add(kept, rows, new):
        return ops.scatter_add(kept, rows, new)

    @staticmethod
    def scatter_nd_add(kept, rows, new):
        return ops.scatter_nd_add(kept, ops.expand_dims(rows, 1), new)


class Counting(nn.Cell):
    def __init__(self, add, dtype):
        super().__init__()
        self.kept, self.add = Parameter(Tensor(np.ones((3, 2)), dtype), name="kept"), add

    def construct(self, rows, new):
        return self.add(self.kept, rows, new)


@pytest.mark.parametrize(
    "mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE], ids=["PyNative", "graph"]
)
@pytest.mark.parametrize("kept", [mindspore.float32, mindspore.float16], ids=str)
@pytest.mark.parametrize("new", [mindspore.float32, mindspore.float16], ids=str)
@pytest.mark.parametrize(
    "policy",
    [
        Policy("O1", "float16"),
        Policy("O3", "float16"),
        Policy("O1", "bfloat16", allow=["index_add", "scatter_add", "scatter_nd_add"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["index_add", "scatter_add", "scatter_nd_add", "IndexAdd"])
def test_what_is_changed_is_changed(name, policy, new, kept, mode):
    mindspore.set_context(mode=mode)
    try:
        cell = Counting(ops.IndexAdd(0) if name == "IndexAdd" else getattr(Functions, name), kept)
        for _ in range(2):
            with policy_region(policy):
                result = cell(Tensor(ROWS), Tensor(np.full((3, 2), 3.0), new))
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert cell.kept.dtype == result.dtype == kept
    np.testing.assert_array_equal(cell.kept.asnumpy(), [[7, 7], [13, 13], [1, 1]])


def test_what_computes_a_new_tensor_follows_its_rule():
    kept = Parameter(Tensor(np.ones((3, 2), "float32")), name="kept")
    with policy_region(Policy("O3", "float16")):
        assert (
            ops.tensor_scatter_add(
                kept, Tensor(ROWS.reshape(-1, 1)), Tensor(np.ones((3, 2), "float32"))
            ).dtype
            == mindspore.float16
        )
        assert (
            mint.index_add(kept, 0, Tensor(ROWS), Tensor(np.ones((3, 2), "float32"))).dtype
            == mindspore.float16
        )
    np.testing.assert_array_equal(kept.asnumpy(), np.ones((3, 2)))
