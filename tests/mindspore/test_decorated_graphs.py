"""Decorated functions and cells in a graph follow their own policy, compiled and exported.

The innermost policy decides, for a whole graph and for parts.
"""

from contextlib import nullcontext

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from unamp_mindspore.conformance.ways.opening import graph_mode

import unamp
from unamp.dialects.torch.amp import autocast as torch_autocast

F32, F16, BF16 = mindspore.float32, mindspore.float16, mindspore.bfloat16
#: Products of the numbers rounded to low (by a quarter of the last place) are exact in float32.
#: Products of the unrounded numbers differ from them.
X = Tensor(
    (np.random.default_rng(0).integers(32, 63, (4, 4)) / 64 + 2**-10 + 2**-13).astype(np.float32)
)

low = unamp.autocast(dtype="float16")
off = unamp.autocast(enabled=False)
brain = unamp.autocast(dtype="bfloat16")


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


class HoldsCasts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.casts = CastsInputs()

    def construct(self, x):
        return self.casts(ops.matmul(x, x))


@torch_autocast("cpu", dtype="float16")
def in_torchs_words(x):
    return ops.matmul(x, x)


ROOTS = [
    (product, F16),
    (in_torchs_words, F16),
    (wide, F32),
    (wide_inside, F32),
    (ours, F16),
    (Decorated(), F16),
]


@pytest.mark.parametrize(
    ("root", "expected"), ROOTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_decorated_root_has_its_own_policy_whatever_is_around_the_call(root, expected):
    compiled = mindspore.jit(root)
    for _ in range(2):
        assert compiled(X).dtype == expected
        with low:
            assert compiled(X).dtype == expected
        with off:
            assert compiled(X).dtype == expected


def test_a_decorated_construct_in_graph_mode():
    cell = Decorated()
    with graph_mode():
        assert cell(X).dtype == F16
        with off:
            assert cell(X).dtype == F16
        assert Plain()(X).dtype == F32


class Many(nn.Cell):
    """Parts under several policies; they share cells and functions."""

    def __init__(self):
        super().__init__()
        self.dense, self.plain, self.decorated = (
            nn.Dense(4, 4, weight_init=X, has_bias=False),
            Plain(),
            Decorated(),
        )
        self.listed = nn.CellList([Plain(), Decorated()])
        self.sequence = nn.SequentialCell(Plain(), Decorated())

    @brain
    def inner(self, x):
        return self.plain(x), self.dense(x), self.decorated(x), wide(x), self.listed[0](x)

    def construct(self, x):
        listed = ()
        for each in self.listed:
            listed += (each(x),)
        return (
            plain(x),
            product(x),
            self.plain(x),
            self.dense(x),
            *self.inner(x),
            *listed,
            self.dense(x),
            self.sequence(x),
        )


def values(found):
    found = found if isinstance(found, tuple) else (found,)
    return [(each.dtype, ops.cast(each, F32).asnumpy()) for each in found]


def assert_equal(found, expected):
    for one, other in zip(values(found), values(expected), strict=True):
        assert one[0] == other[0]
        if one[0] == F32:
            np.testing.assert_allclose(one[1], other[1], rtol=1e-6)
        else:
            np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize(
    "make", [lambda: calls_product, lambda: calls_wide, Holds, Method, Many, HoldsCasts]
)
@pytest.mark.parametrize(
    "around", [None, low, off, brain], ids=["outside", "low", "off", "bfloat16"]
)
def test_parts_of_one_graph_follow_policies_of_their_own(make, around):
    network = make()
    compiled = mindspore.jit(network)
    with around or nullcontext():
        assert_equal(compiled(X), network(X))


@pytest.mark.parametrize("make", [Holds, Method, Many, HoldsCasts])
def test_parts_of_a_cell_in_graph_mode(make):
    network, x = make(), X
    expected = {}
    for name, around in (("outside", nullcontext()), ("low", low)):
        with around:
            expected[name] = network(x)
    with graph_mode():
        for name, around in (("outside", nullcontext()), ("low", low)):
            with around:
                assert_equal(network(x), expected[name])
    marks = {"_unamp_bound", "_unamp_original", "amp_strategy"}
    assert not any(marks & vars(cell).keys() for _, cell in network.cells_and_names())


def test_inputs_that_are_cast_are_refused_where_they_are_the_graphs_own():
    with graph_mode(), low, pytest.raises(unamp.NotExpressible, match="cast_inputs"):
        CastsInputs()(X)
    with graph_mode():
        assert CastsInputs()(X).dtype == F32  # outside of graphs the casts of inputs have no effect


def exported(net):
    mindspore.export(net, X, file_name="net", file_format="MINDIR")
    return nn.GraphCell(mindspore.load("net.mindir"))(X)


def test_what_is_exported_computes_under_the_policy_of_the_region_around_the_export():
    cell, function = Plain(), mindspore.jit(plain)
    for net in (cell, function):
        for around in (nullcontext(), low, brain):
            with around:
                expected = cell(X)
                mindspore.export(net, X, file_name="low", file_format="MINDIR")
            assert_equal(nn.GraphCell(mindspore.load("low.mindir"))(X), expected)
    assert exported(cell).dtype == F32


def test_what_is_decorated_and_exported():
    assert exported(Decorated()).dtype == F16
    assert exported(mindspore.jit(product)).dtype == F16
    network = Many()
    assert_equal(exported(network), network(X))
