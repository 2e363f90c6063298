"""Registered operations of a user on MindSpore keep the promises of the module `registered`."""

import mindspore
import pytest
import registered
from mindspore import Tensor, ops
from registered import test_promises  # noqa: F401

import unamp


def product(x, w):
    return ops.matmul(x, w) + ops.zeros_like(ops.matmul(x, w))


def calling(x, w):
    return product(x, w)


@pytest.mark.parametrize(
    ("rule", "arguments", "dtype"),
    [
        ("low", {}, "bfloat16"),
        ("float32", {}, "float32"),
        ("low", {"deny": "unamp_tests::product"}, "float32"),
        ("float32", {"level": "O3"}, "bfloat16"),
        ("low", {"enabled": False}, "float32"),
    ],
)
def test_graphs(rule, arguments, dtype):
    registration = unamp.register_operation("unamp_tests::product", product, rule=rule)
    x, w = Tensor(registered.X), Tensor(registered.W)
    calls = mindspore.jit(calling)
    with unamp.autocast(**{"dtype": "bfloat16", **arguments}):
        low = calls(x, w)
    outside = calls(x, w)
    registration.undo()
    assert str(low.dtype).lower() == dtype
    assert float(low.astype(mindspore.float32)[0, 0]) == (
        registered.IN_LOW if dtype == "bfloat16" else registered.IN_FLOAT32
    )
    assert outside.dtype == mindspore.float32


def _set(x):
    x[0] = 7


@pytest.mark.parametrize(
    "change",
    [
        _set,
        lambda x: x.copy_(x * 2),
        lambda x: ops.assign(x, x * 2),
        lambda x: ops.assign_add(x, x),
    ],
    ids=["index", "copy_", "assign", "assign_add"],
)
def test_a_change_that_would_be_lost_is_refused(change):
    registered.a_change_that_would_be_lost_is_refused(change, Tensor(registered.X))


def test_a_shadow_is_left_out():
    x = Tensor(registered.X)
    registered.a_shadow_is_left_out(
        lambda x: x + x, x, "MindSpore does not tell whether a registered function draws random"
    )
