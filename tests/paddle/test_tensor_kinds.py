"""For sparse tensors, a rule that cannot be followed is refused before anything is computed.

All other rules leave sparse tensors alone.
"""

import numpy as np
import paddle
import pytest
from unamp_paddle.conformance.tensor_kinds import tensor_kinds

from unamp import NotExpressible, Policy, policy_region

KINDS = {kind.name: kind for kind in tensor_kinds()}
CALLS = [(name, op) for name, kind in KINDS.items() for op in kind.calls]
#: Paddle itself has no such product on the CPU, and raises.
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


@pytest.mark.parametrize(
    "make",
    [
        lambda low: low.to_sparse_coo(2),
        lambda low: low.to_sparse_csr(),
        lambda low: paddle.sparse.mask_as(low, paddle.eye(3).to_sparse_coo(2)),
        lambda low: paddle.sparse.sparse_coo_tensor(
            paddle.to_tensor([[0, 1, 2]]), low, [3, 3], stop_gradient=False
        ),
    ],
    ids=["coo", "csr", "mask_as", "sparse_coo_tensor"],
)
def test_a_sparse_tensor_that_is_made_of_a_low_one_is_float32_on_a_cpu(make):
    low = paddle.eye(3).astype("bfloat16")
    low.stop_gradient = False
    with policy_region(Policy("O1", "bfloat16")):
        made = make(low)
        added = paddle.sparse.add(made, made)
        if made.is_sparse_coo():  # Paddle has no gradient of the other layout
            added.to_dense().sum().backward()
            assert low.grad.dtype == paddle.bfloat16
    assert made.dtype == added.dtype == paddle.float32
    np.testing.assert_array_equal(added.to_dense().numpy(), 2 * np.eye(3, dtype="float32"))


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
