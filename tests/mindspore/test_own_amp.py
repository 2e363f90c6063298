"""Of MindSpore's own AMP and unamp's regions, one inside the other, the inner one decides."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, amp, nn, ops
from mindspore._c_expression.amp import get_curr_amp_strategy
from unamp_mindspore import patches

import unamp

F32, F16, BF16 = mindspore.float32, mindspore.float16, mindspore.bfloat16
X = Tensor(np.random.default_rng(0).uniform(0.1, 1, (4, 4)).astype(np.float32))


def product(x):
    return ops.matmul(x, x)


def exponential(x):
    return ops.exp(x)


@pytest.fixture(autouse=True)
def _none_left():
    yield
    assert get_curr_amp_strategy() is None


def test_a_region_inside_mindspores_own():
    def body(x):
        with unamp.autocast(enabled=False):
            off = product(x)
            with unamp.autocast(dtype="bfloat16"):
                low = product(x)
        return product(x), off, low, product(x)

    assert [each.dtype for each in amp.auto_mixed_precision(body, "auto")(X)] == [
        F16,
        F32,
        BF16,
        F16,
    ]


def test_mindspores_own_inside_a_region():
    own, low = amp.auto_mixed_precision(product, "auto"), X.astype(F16)
    denied = amp.auto_mixed_precision(exponential, "auto")
    with unamp.autocast(dtype="bfloat16"):
        assert (product(X).dtype, own(X).dtype, product(X).dtype) == (BF16, F16, BF16)
    with unamp.autocast(dtype="float16", level="O3"):
        assert (exponential(low).dtype, denied(low).dtype, exponential(low).dtype) == (
            F16,
            F32,
            F16,
        )
    with unamp.autocast(enabled=False):
        assert (product(X).dtype, own(X).dtype, product(X).dtype) == (F32, F16, F32)


def test_after_an_error_the_region_is_in_force_again():
    def fails(x):
        raise KeyError("inside")

    with unamp.autocast(dtype="float16"):
        with pytest.raises(KeyError, match="inside"):
            amp.auto_mixed_precision(fails, "auto")(X)
        assert product(X).dtype == F16


class Product(nn.Cell):
    def construct(self, x):
        return ops.matmul(x, x)


@pytest.mark.parametrize(
    "mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE], ids=["pynative", "graph"]
)
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_the_casts_of_a_converted_cell_are_casts_in_a_region_too(mode, level):
    mindspore.set_context(mode=mode)
    try:
        cell = amp.auto_mixed_precision(Product(), level)
        alone = cell(X)
        with unamp.autocast(dtype="float16", deny="matmul"):
            found = cell(X)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert found.dtype == alone.dtype == F32
    np.testing.assert_allclose(found.asnumpy(), alone.asnumpy(), rtol=2**-9)
    assert (found.asnumpy() != ops.matmul(X, X).asnumpy()).any()


@pytest.mark.parametrize(
    "mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE], ids=["pynative", "graph"]
)
@pytest.mark.parametrize("own", [F16, F32], ids=str)
@pytest.mark.parametrize("deny", [(), "*"], ids=["listed", "denied"])
def test_a_layer_with_a_dtype_of_its_own_computes_as_outside(mode, own, deny):
    mindspore.set_context(mode=mode)
    try:
        network = nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,)), nn.Dense(4, 2))
        network.to_float(own)
        alone = network(X)
        with unamp.autocast(dtype="bfloat16", deny=deny):
            found = network(X)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert found.dtype == alone.dtype == own
    np.testing.assert_array_equal(found.asnumpy(), alone.asnumpy())


def test_a_region_for_a_device_that_does_not_compute_here_changes_nothing():
    with unamp.autocast("cpu", dtype="float16"):
        with unamp.Region(unamp.Policy(dtype="bfloat16"), device="gpu"):
            assert product(X).dtype == F16
        with unamp.autocast("cuda", enabled=False):
            assert product(X).dtype == F16


def test_a_region_that_cannot_be_opened_leaves_mindspores_own_in_force(monkeypatch):
    def missing():
        raise unamp.FrameworkNotSupported("a name is gone")

    def body(x):
        with (
            pytest.raises(unamp.FrameworkNotSupported, match="a name is gone"),
            unamp.autocast(dtype="bfloat16"),
        ):
            pass
        return product(x)

    monkeypatch.setattr(patches, "acquire", missing)
    assert amp.auto_mixed_precision(body, "auto")(X).dtype == F16
