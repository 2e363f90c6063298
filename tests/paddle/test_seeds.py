"""The examples of Paddle's documentation of `auto_cast` and `amp_guard`, on a CPU, with the dtypes that it states."""

import numpy as np
import paddle
import pytest

import unamp


@pytest.fixture(params=[None, False], ids=["bias", "no bias"])
def conv2d(request):
    return paddle.nn.Conv2D(3, 2, 3, bias_attr=request.param)


@pytest.fixture(params=[unamp.auto_cast, unamp.amp_guard])
def region(request):
    return request.param


def test_amp_guard_on_numpy_data(conv2d):
    data = paddle.to_tensor(np.random.uniform(-1, 1, [10, 3, 32, 32]).astype("float32"))
    with unamp.amp_guard():
        assert conv2d(data).dtype == paddle.float16
    with unamp.amp_guard(enable=False):
        assert conv2d(data).dtype == paddle.float32


def test_white_operation_is_float16(conv2d, region):
    with region():
        assert conv2d(paddle.rand([10, 3, 32, 32])).dtype == paddle.float16


def test_disabled(conv2d, region):
    with region(enable=False):
        assert conv2d(paddle.rand([10, 3, 32, 32])).dtype == paddle.float32


def test_custom_black_list(conv2d, region):
    with region(custom_black_list={"conv2d"}):
        assert conv2d(paddle.rand([10, 3, 32, 32])).dtype == paddle.float32


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_custom_white_list(region, level):
    a, b = paddle.rand([2, 3]), paddle.rand([2, 3])
    with region(custom_white_list={"elementwise_add"}, level=level):
        assert (a + b).dtype == paddle.float16
        assert paddle.add(a, b).dtype == paddle.float16
        assert a.add(b).dtype == paddle.float16


def test_the_printed_words(conv2d):
    with unamp.auto_cast():
        assert str(conv2d(paddle.rand([1, 3, 8, 8])).dtype) == "paddle.float16"


def test_overlapping_lists_are_an_error(region):
    with pytest.raises(ValueError, match="conv2d"):
        region(custom_white_list={"conv2d"}, custom_black_list={"conv2d"})


def test_one_operation_spelled_two_ways_is_the_same(region):
    with pytest.raises(ValueError, match="matmul"):
        region(custom_white_list={"matmul"}, custom_black_list={"matmul_v2"})


def test_unknown_level(region):
    with pytest.raises(ValueError, match="O4.*O0, OD, O1, O2, O3"):
        region(level="O4")
