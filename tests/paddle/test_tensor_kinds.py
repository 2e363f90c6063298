"""Sparse tensors: a rule that cannot be carried out is refused before anything is computed.

All other rules leave them alone.
"""

import numpy as np
import paddle
import pytest
from unamp_paddle.conformance.tensor_kinds import tensor_kinds

from unamp import NotExpressible, Policy, policy_region

KINDS = {kind.name: kind for kind in tensor_kinds()}
CALLS = [(name, op) for name, kind in KINDS.items() for op in kind.calls]
#: Paddle has no such product on the CPU, and says so itself.
NOWHERE = {"sparse_mm"}


@pytest.mark.parametrize(("name", "op"), [call for call in CALLS if call[1] not in NOWHERE])
@pytest.mark.parametrize("level", ["OD", "O1", "O2", "O3"])
def test_levels_leave_them_alone(name, op, level):
    kind = KINDS[name]
    value = kind.make("float32", "cpu")
    exact = kind.calls[op](value)
    with policy_region(Policy(level, "bfloat16")):
        found = kind.calls[op](value)
    assert kind.dtype(found) == "float32"
    np.testing.assert_array_equal(kind.values(found), kind.values(exact))


@pytest.mark.parametrize("level", ["O1", "O3"])
def test_a_layer_of_sparse_tensors_is_left_alone(level):
    conv = paddle.sparse.nn.Conv3D(1, 2, 3, padding=1)
    index = paddle.to_tensor([[0, 0, 0], [0, 1, 2], [0, 1, 2], [0, 2, 1]])
    x = paddle.sparse.sparse_coo_tensor(
        index, paddle.to_tensor([[1.5], [2.5], [3.5]]), [1, 4, 4, 4, 1]
    )
    exact = conv(x)
    with policy_region(Policy(level, "bfloat16")):
        found = conv(x)
    np.testing.assert_array_equal(found.values().numpy(), exact.values().numpy())
    with (
        policy_region(Policy(level, "bfloat16", allow="conv3d")),
        pytest.raises(NotExpressible, match="conv3d is in the list"),
    ):
        conv(x)


def test_an_embedding_with_sparse_gradients_is_left_alone_unless_a_list_names_it():
    words = paddle.to_tensor([1, 2])
    for sparse, dtype in ((True, paddle.float32), (False, paddle.bfloat16)):
        embedding = paddle.nn.Embedding(4, 3, sparse=sparse)
        with policy_region(Policy("O3", "bfloat16")):
            assert embedding(words).dtype == dtype
        with policy_region(Policy("O1", "bfloat16", deny="embedding")):
            assert embedding(words).dtype == paddle.float32
    embedding = paddle.nn.Embedding(4, 3, sparse=True)
    with (
        policy_region(Policy("O1", "bfloat16", allow="embedding")),
        pytest.raises(NotExpressible, match="sparse=False"),
    ):
        embedding(words)


def test_the_dense_twin_of_an_operation_follows_the_list():
    with policy_region(Policy("O1", "float16", allow="tanh")):
        assert paddle.tanh(paddle.ones([2])).dtype == paddle.float16
