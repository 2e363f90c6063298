"""Decorated functions and cells, compiled and exported: the policy is the graph's, or there is no graph."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import unamp
from unamp.dialects.torch.amp import autocast as torch_autocast

F32, F16 = mindspore.float32, mindspore.float16
X = Tensor(np.random.default_rng(0).uniform(0.1, 1, (4, 4)).astype(np.float32))

low = unamp.autocast(dtype="float16")
off = unamp.autocast(enabled=False)


def plain(x):
    return ops.matmul(x, x)


@low
def product(x):
    return ops.matmul(x, x)


@off
def wide(x):
    return ops.matmul(x, x)


@low
@off
def wide_inside(x):
    return ops.matmul(x, x)


@unamp.autocast(dtype="float16", framework="mindspore")
def ours(x):
    return ops.matmul(x, x)


def calls_product(x):
    return product(x)


def calls_wide(x):
    return wide(x)


class Plain(nn.Cell):
    def construct(self, x):
        return ops.matmul(x, x)


class Decorated(nn.Cell):
    @low
    def construct(self, x):
        return ops.matmul(x, x)


class Holds(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Decorated()

    def construct(self, x):
        return self.inner(x)


class Method(nn.Cell):
    @low
    def product(self, x):
        return ops.matmul(x, x)

    def construct(self, x):
        return self.product(x)


class CastsInputs(nn.Cell):
    @unamp.custom_fwd(cast_inputs="float32")
    def construct(self, x):
        return ops.matmul(x, x)


@torch_autocast("cpu", dtype="float16")
def in_torchs_words(x):
    return ops.matmul(x, x)


ROOTS = [(product, F16), (in_torchs_words, F16), (wide, F32), (wide_inside, F32), (ours, F16), (Decorated(), F16)]


@pytest.mark.parametrize(("root", "expected"), ROOTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_decorated_root_has_its_own_policy_whatever_is_around_the_call(root, expected):
    compiled = mindspore.jit(root)
    for _ in range(2):
        assert compiled(X).dtype == expected
        with low:
            assert compiled(X).dtype == expected
        with off:
            assert compiled(X).dtype == expected


def test_a_decorated_construct_in_graph_mode(graph_mode):
    cell = Decorated()
    assert cell(X).dtype == F16
    with off:
        assert cell(X).dtype == F16
    assert Plain()(X).dtype == F32


@pytest.mark.parametrize("make", [lambda: calls_product, Holds, Method], ids=["function", "cell", "method"])
def test_another_policy_deeper_in_a_graph_is_refused(make):
    compiled = mindspore.jit(make())
    for _ in range(2):
        with pytest.raises(unamp.NotExpressible, match="decorated with a region.*PYNATIVE_MODE"):
            compiled(X)
        with low:
            assert compiled(X).dtype == F16


@pytest.mark.parametrize("make", [Holds, Method])
def test_another_policy_deeper_in_a_cell_is_refused_in_graph_mode(graph_mode, make):
    with pytest.raises(unamp.NotExpressible, match="decorated with a region"):
        make()(X)
    with low:
        assert make()(X).dtype == F16


def test_a_part_that_is_switched_off_is_refused_in_a_region_alone():
    compiled = mindspore.jit(calls_wide)
    assert compiled(X).dtype == F32
    with low, pytest.raises(unamp.NotExpressible, match="decorated with a region"):
        compiled(X)


def test_cast_inputs_are_refused_in_a_graph_with_a_policy(graph_mode):
    with low, pytest.raises(unamp.NotExpressible, match="cast_inputs"):
        CastsInputs()(X)
    assert CastsInputs()(X).dtype == F32  # there they have no effect


def exported(net):
    mindspore.export(net, X, file_name="net", file_format="MINDIR")
    return nn.GraphCell(mindspore.load("net.mindir"))(X).dtype


def test_what_is_exported_computes_under_the_policy_of_the_region_around_the_export():
    cell, function = Plain(), mindspore.jit(plain)
    for _ in range(2):
        for net in (cell, function):
            assert exported(net) == F32
            with low:
                mindspore.export(net, X, file_name="low", file_format="MINDIR")
            assert nn.GraphCell(mindspore.load("low.mindir"))(X).dtype == F16
    with low, pytest.raises(unamp.NotExpressible, match="bfloat16"), unamp.autocast(dtype="bfloat16"):
        exported(cell)


def test_what_is_decorated_and_exported():
    assert exported(Decorated()) == F16
    assert exported(mindspore.jit(product)) == F16
    with pytest.raises(unamp.NotExpressible, match="decorated with a region"):
        exported(Holds())
